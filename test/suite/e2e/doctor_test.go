package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testhost"
)

// finding is one of pannier doctor.
type finding struct{ Check, Status, Why, Command, Fixed string }

// examined runs pannier doctor, and returns its exit code and what is not well.
func examined(m *mesh, args ...string) (code int, problems map[string]finding) {
	m.t.Helper()
	result := m.Try(append([]string{"doctor", "-config", m.Path("agent.hcl"), "-o", "json"}, args...)...)
	var all []finding
	if err := json.Unmarshal([]byte(result.Stdout), &all); err != nil || len(all) < 20 {
		m.t.Fatalf("pannier doctor: %v: %s%s", err, result.Stdout, result.Stderr)
	}
	problems = map[string]finding{}
	for _, f := range all {
		if f.Status == "warn" || f.Status == "fail" || f.Fixed != "" {
			problems[f.Check] = f
		}
	}
	return result.Code, problems
}

// examinedByAgent returns what is not well as the agent says, which makes the same checks.
func examinedByAgent(m *mesh) (problems map[string]*hostv1.Finding) {
	m.t.Helper()
	resp, err := m.Client().Agent.Examine(m.t.Context(), &hostv1.ExamineRequest{})
	if err != nil {
		m.t.Fatal(err)
	}
	problems = map[string]*hostv1.Finding{}
	for _, f := range resp.GetFindings() {
		if f.GetStatus() == "warn" || f.GetStatus() == "fail" {
			problems[f.GetCheck()] = f
		}
	}
	return problems
}

// TestDoctor breaks a host in several ways, one after the other. Each is found, with the name of what is broken and
// the command that mends it.
func TestDoctor(t *testing.T) {
	t.Parallel()
	m := newMesh(t, byLogin, testhost.LocalDriver(t))
	m.open()
	m.AwaitDrivers()
	var usual map[string]finding // what this machine has anyway, such as a Docker without live-restore
	m.Eventually("the host is well", func() error {
		_, usual = examined(m)
		for _, check := range []string{
			"agent", "plugins", "drivers", "journal and mounts", "releases", "Consul", "configuration",
		} {
			if f, found := usual[check]; found { // such as a plugin that is still starting
				return fmt.Errorf("it has a problem: %+v", f)
			}
		}
		return nil
	})
	broken := func(check, status, command string, why ...string) {
		t.Helper()
		code, problems := examined(m)
		f, found := problems[check]
		if !found || f.Status != status || !strings.Contains(f.Command, command) {
			t.Fatalf("the finding of %q is %+v, among %+v", check, f, problems)
		}
		for _, word := range why {
			if !strings.Contains(f.Why, word) {
				t.Errorf("%q does not say %q: %s", check, word, f.Why)
			}
		}
		if (status == "fail") != (code == 1) && len(usual) == 0 {
			t.Errorf("the exit code is %d with %+v", code, problems)
		}
		for name, other := range problems {
			if _, known := usual[name]; name != check && !known {
				t.Errorf("besides %q there is %+v", check, other)
			}
		}
	}
	well := func(check string) {
		t.Helper()
		m.Eventually(check+" is well again", func() error {
			if _, problems := examined(m); problems[check].Check != "" {
				return fmt.Errorf("it is %+v", problems[check])
			}
			return nil
		})
	}

	m.Run("driver", "register", "gone", "-endpoint", "unix://"+m.Path("gone.sock"))
	broken("drivers", "fail", "pannier driver status gone", "gone", "gone.sock", "no such file")
	agents := examinedByAgent(m)
	for check := range usual {
		delete(agents, check)
	}
	if f := agents["drivers"]; len(agents) != 1 || f.GetStatus() != "fail" || f.GetSubject() != "gone" ||
		!strings.Contains(f.GetWhy(), "no such file") || f.GetCommand() != "pannier driver status gone" {
		t.Errorf("the agent's own examination has %v", agents)
	}
	m.Run("driver", "deregister", "gone")
	well("drivers")
	m.Eventually("the agent examines the host again", func() error {
		if f := examinedByAgent(m)["drivers"]; f != nil {
			return fmt.Errorf("it is %v", f)
		}
		return nil
	})

	token, err := os.ReadFile(m.reach.TokenFile)
	must(t, err)
	must(t, os.WriteFile(m.reach.TokenFile, []byte("00000000-dead-beef-0000-000000000000"), 0o600))
	broken("Consul", "fail", "consul acl token read", "403", m.reach.TokenFile)
	must(t, os.WriteFile(m.reach.TokenFile, []byte(m.consul.Token(t)), 0o600))
	broken("Consul", "warn", "consul acl token read", "may not register every service")
	must(t, os.WriteFile(m.reach.TokenFile, token, 0o600))
	well("Consul")

	// A file whose space a loop device keeps.
	file := m.Path("data/orphan.img")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, 1<<20))
	device, err := exec.Command("losetup", "--find", "--show", file).Output()
	must(t, err)
	loop := strings.TrimSpace(string(device))
	detached := false
	t.Cleanup(func() {
		if !detached { // otherwise it may be another test's by now
			_ = exec.Command("losetup", "-d", loop).Run()
		}
	})
	well("orphan loop devices") // it has its file
	must(t, os.Remove(file))
	broken("orphan loop devices", "warn", "losetup -d "+loop, loop, file)
	_, problems := examined(m, "-fix")
	if detached = problems["orphan loop devices"].Fixed == "mended"; !detached {
		t.Errorf("-fix leaves %+v", problems)
	}
	well("orphan loop devices")

	// A newer file of a plugin that cannot serve.
	program, err := os.ReadFile("/bin/true")
	must(t, err)
	newer := filepath.Join(m.PluginDir, "sids_v9.9.9")
	must(t, os.WriteFile(newer, program, 0o755)) //nolint:gosec // a program
	m.Eventually("the file is refused", func() error {
		if _, problems := examined(m); !strings.Contains(problems["plugins"].Why, "refused") {
			return fmt.Errorf("the problems are %+v", problems)
		}
		return nil
	})
	broken("plugins", "warn", "pannier plugin versions sids", "sids", newer)
	must(t, os.Remove(newer))
	well("plugins")

	// A volume that somebody unmounts below a running workload.
	volume(m.Host, drivers[0], "v", "single-node-writer", "")
	m.Run("workload", "start", workload(m.Host, "w", "v", ""))
	path := m.workload("w").GetMounts()[0].GetHostPath()
	well("journal and mounts")

	// A bind of a volume that somebody has made by hand.
	bind := m.Path("bind")
	must(t, os.Mkdir(bind, 0o700))
	must(t, unix.Mount(path, bind, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(bind, unix.MNT_DETACH) }) // it may be gone
	broken("binds of volumes", "warn", "umount "+bind, bind, `"v"`, `"w"`)
	must(t, unix.Unmount(bind, 0))
	well("binds of volumes")

	must(t, unix.Unmount(path, unix.MNT_DETACH))
	broken("journal and mounts", "fail", "pannier workload stop w", "w", "v", path)
	m.Run("workload", "stop", "w")
	well("journal and mounts")

	m.Kill()
	code, problems := examined(m)
	if f := problems["agent"]; code != 1 || f.Status != "fail" || !strings.Contains(f.Command, "journalctl -u pannier") {
		t.Errorf("an agent that was killed is %d, %+v", code, problems)
	}
	m.Start()
	well("agent")
}
