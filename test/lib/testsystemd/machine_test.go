package testsystemd_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testns"
	"github.com/pannier/pannier/test/lib/testsystemd"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

// TestReboot boots a machine again, which has its files, and nothing of the boot before.
func TestReboot(t *testing.T) {
	m := testsystemd.Start(t, "a second boot of systemd")
	boot := m.Read("/proc/sys/kernel/random/boot_id")
	for name, again := range map[string]func(){"reboot": m.Reboot, "power cycle": m.PowerCycle} {
		m.Run("sh", "-c", "for dir in /etc /usr/bin /var/lib /run /tmp; do echo $dir >$dir/kept; done")
		again()
		if now := m.Read("/proc/sys/kernel/random/boot_id"); now == boot {
			t.Errorf("%s: the boot's id is the same", name)
		}
		for path, kept := range map[string]bool{"/etc": true, "/usr/bin": true, "/var/lib": true, "/run": false, "/tmp": false} {
			if got := m.Read(path + "/kept"); (got == path+"\n") != kept {
				t.Errorf("%s: %s/kept is %q", name, path, got)
			}
		}
	}
}

// TestMachine boots a machine, which has nothing of this one's that it could change.
func TestMachine(t *testing.T) {
	m := testsystemd.New(t, "systemd as process 1")
	outside, err := os.MkdirTemp("", "outside-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(outside)
	m.Write("/etc/systemd/system/hello.service", `[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo hello >/run/said; touch /usr/bin/mine'
[Install]
WantedBy=multi-user.target
`, 0o644)
	m.Run("systemctl", "enable", "hello.service")
	m.Boot()
	if said := m.Read("/run/said"); said != "hello\n" {
		t.Errorf("the unit has said %q", said)
	}
	if failed := m.Run("systemctl", "list-units", "--failed", "--plain", "--no-legend"); failed != "" {
		t.Errorf("units have failed: %s\n%s", failed, m.Journal())
	}
	for _, path := range []string{outside, "/run/said"} {
		_, inside := os.Stat(m.Path(path))
		_, here := os.Stat(path)
		if (inside == nil) == (here == nil) {
			t.Errorf("%s: inside %v, here %v", path, inside, here)
		}
	}
	if _, err := os.Stat("/usr/bin/mine"); err == nil {
		t.Error("the machine has changed this machine's /usr")
	}
	if out, err := m.Try("sh", "-c", "cat /proc/sys/kernel/sysrq >/proc/sys/kernel/sysrq"); err == nil {
		t.Errorf("the machine can change kernel settings: %s", out)
	}
	for line := range strings.Lines(m.Read("/proc/mounts")) {
		if strings.Contains(line, outside) {
			t.Errorf("the machine has a mount of this machine: %s", line)
		}
	}
}
