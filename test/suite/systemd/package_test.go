package systemd

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"aead.dev/minisign"

	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testsystemd"
)

// debian prepares a machine with a dpkg that knows of no package.
func debian(t *testing.T) *host {
	t.Helper()
	const notCovered = "the package of Debian"
	for _, program := range []string{"dpkg", "dpkg-deb", "apt", "deb-systemd-helper"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s; not covered: %s", program, notCovered)
		}
	}
	h := &host{testsystemd.New(t, notCovered), t}
	h.Run("mkdir", "-p", "/var/lib/dpkg/info", "/var/lib/dpkg/updates", "/var/lib/dpkg/triggers",
		"/var/lib/apt/lists/partial", "/var/cache/apt/archives/partial", "/var/log/apt", "/etc/apt")
	h.Write("/var/lib/dpkg/status", "", 0o644)
	h.Write("/var/lib/dpkg/available", "", 0o644)
	h.Run("rm", "-f", "/usr/sbin/policy-rc.d") // of a container, where packages start nothing
	return h
}

// packages makes packages as make packages does, of programs that the tests share.
func packages(t *testing.T, version string, packagers ...string) (dir string) {
	t.Helper()
	release, man, out := t.TempDir(), t.TempDir(), t.TempDir()
	write := func(path string, data []byte, mode os.FileMode) {
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, data, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	place := func(from, to string, mode os.FileMode) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(release, to), data, mode)
	}
	place(testbin.BuildVersion(t, "host/cmd/pannier", version), "pannier", 0o755)
	place(testbin.BuildVersion(t, "host/cmd/pannier-agent", version), "pannier-agent", 0o755)
	place(testbin.BuildVersion(t, "plugins/csi-bridge", version), "plugins/csi-bridge", 0o755)
	place(testbin.Build(t, "plugins/docker-volume"), "plugins/docker-volume", 0o755)
	place(testbin.Build(t, "drivers/csi-local"), "csi-local", 0o755)
	units, err := filepath.Glob(testbin.Root() + "/packaging/systemd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(units, testbin.Root()+"/LICENSE") {
		place(file, filepath.Base(file), 0o644)
	}
	write(release+"/THIRD-PARTY-NOTICES", []byte("their licences\n"), 0o644)
	write(release+"/sbom/pannier.cdx.json", []byte("{}\n"), 0o644)
	write(man+"/pannier.1", []byte(".TH PANNIER 1\n.SH NAME\npannier \\- volumes\n"), 0o644)
	sums, err := exec.Command(testbin.Root()+"/tools/sums", release).Output()
	if err != nil {
		t.Fatal(err)
	}
	write(release+"/SHA256SUMS", sums, 0o644)
	hashed := minisign.NewReader(bytes.NewReader(sums))
	_, _ = io.Copy(io.Discard, hashed) // it cannot fail
	write(release+"/SHA256SUMS.minisig", hashed.SignWithComments(maintainers().private, "Pannier v"+version, ""), 0o644)
	cmd := exec.Command(testbin.Root()+"/tools/packages", append([]string{release, "v" + version, out}, packagers...)...)
	cmd.Env = append(os.Environ(), "MAN="+man, "COMMAND="+release+"/pannier", "PANNIER_CACHE="+testbin.CacheDir(t))
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	return out
}

// maintainers have the key of the releases of the tests.
var maintainers = sync.OnceValue(func() (k struct {
	public  minisign.PublicKey
	private minisign.PrivateKey
},
) {
	var err error
	if k.public, k.private, err = minisign.GenerateKey(rand.Reader); err != nil {
		panic(err)
	}
	return k
})

// verified fails unless what is installed is what was released.
func (h *host) verified(version string) {
	h.t.Helper()
	out := h.Run("pannier", "self", "verify", "-key", maintainers().public.String())
	if !strings.Contains(out, "all is as in Pannier v"+version+",") || !strings.Contains(out, "/usr/lib/pannier/csi-local") {
		h.t.Errorf("the installation is verified as %s", out)
	}
}

// put makes a package of a version and brings it into the machine.
func (h *host) put(version, path string) {
	h.t.Helper()
	h.Install(packages(h.t, version, "deb")+"/pannier_"+version+"_"+arch(h.t)+".deb", path)
}

func arch(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("dpkg", "--print-architecture").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// serves fails unless the agent's program is of a version.
func (h *host) serves(version string) {
	h.t.Helper()
	if out := h.Run("pannier", "status"); !strings.Contains(out, version) {
		h.t.Errorf("the agent is not of version %s: %s", version, out)
	}
}

// gone fails if there are files.
func (h *host) gone(paths ...string) {
	h.t.Helper()
	for _, path := range paths {
		if _, err := os.Lstat(h.Path(path)); !errors.Is(err, os.ErrNotExist) {
			h.t.Errorf("%s is there: %v", path, err)
		}
	}
}

// are fails if one of some files is not there.
func (h *host) are(paths ...string) {
	h.t.Helper()
	for _, path := range paths {
		if _, err := os.Lstat(h.Path(path)); err != nil {
			h.t.Error(err)
		}
	}
}

// fiveCommands are those of docs/getting-started.md.
func fiveCommands(t *testing.T) []string {
	t.Helper()
	commands := strings.Split(strings.TrimSpace(docpages.Block(t, "getting-started.md", "run", "package")), "\n")
	if len(commands) != 5 {
		t.Fatalf("docs/getting-started.md has not five commands, but %q", commands)
	}
	return commands
}

// TestPackage installs, upgrades, removes and purges the package of Debian.
func TestPackage(t *testing.T) {
	t.Parallel()
	h := debian(t)
	h.put("1.0.0", "/root/pannier.deb")
	h.put("2.0.0", "/root/next.deb")
	h.Boot()

	began := time.Now()
	for _, command := range fiveCommands(t) {
		start := time.Now()
		h.Run("sh", "-c", "cd /root && "+command)
		t.Logf("%6.2f s  %s", time.Since(start).Seconds(), command)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the five commands took %v", took)
	}
	for _, unit := range []string{"pannier.service", "pannier.socket"} {
		h.is(unit, "active")
		h.Run("systemctl", "is-enabled", unit)
	}
	h.Run("pannier", "agent", "-config", "/etc/pannier", "-check")
	h.verified("1.0.0")
	h.are("/run/docker/plugins/pannier.sock", "/usr/lib/systemd/system/pannier-workload@.service",
		"/usr/share/man/man1/pannier.1.gz", "/usr/share/man/man8/mount.pannier.8.gz",
		"/usr/share/bash-completion/completions/pannier")
	if said := h.Read("/data/file"); said == "" || !h.claimed("data") || !h.mounted("/data") {
		t.Errorf("the file says %q; claimed: %t, mounted: %t", said, h.claimed("data"), h.mounted("/data"))
	}

	h.Run("sh", "-c", "sleep 1000 >/dev/null 2>&1 </data/file & echo $! >/run/app")
	h.Run("sh", "-c", "echo '# ours' >>/etc/pannier/agent.hcl")
	kept := func(what string) {
		t.Helper()
		h.Run("sh", "-c", "kill -0 $(cat /run/app) && test -s /data/file")
		if !h.claimed("data") || !strings.Contains(h.Read("/etc/pannier/agent.hcl"), "# ours") {
			t.Errorf("%s: claimed: %t; the configuration: %s", what, h.claimed("data"), h.Read("/etc/pannier/agent.hcl"))
		}
	}
	agent := h.pid()
	h.while("the package is upgraded", nil, func() { h.Run("dpkg", "--install", "/root/next.deb") })
	h.serves("2.0.0")
	h.Eventually("the plugin of the package has taken over", func() error {
		if out, err := h.Try("pannier", "plugin", "status", "csi-bridge"); err != nil || !strings.Contains(out, "2.0.0") {
			return errors.Join(err, errors.New(out))
		}
		return nil
	})
	kept("after an upgrade")
	h.verified("2.0.0")

	h.Run("sh", "-c", "cp /etc/pannier/agent.hcl /root; echo 'nonsense = 1' >>/etc/pannier/agent.hcl")
	out := h.Run("dpkg", "--install", "/root/pannier.deb")
	if !strings.Contains(out, "nonsense") || !strings.Contains(out, "then run: pannier agent upgrade") {
		t.Errorf("a program that cannot start is not reported: %s", out)
	}
	h.serves("2.0.0")
	kept("with a program that cannot start")
	h.Run("cp", "/root/agent.hcl", "/etc/pannier/agent.hcl")
	h.Run("pannier", "agent", "upgrade")
	h.serves("1.0.0")
	kept("after a downgrade")
	if now := h.pid(); now != agent {
		t.Errorf("the agent's process was %d, and is %d", agent, now)
	}

	if out, err := h.Try("dpkg", "--remove", "pannier"); err == nil || !strings.Contains(out, "workloads of this host") {
		t.Errorf("it is removed while a workload has a volume: %v: %s", err, out)
	}
	h.serves("1.0.0")
	kept("after a refused remove")
	h.Run("sh", "-c", "kill $(cat /run/app); umount /data")
	h.Run("apt", "remove", "--yes", "pannier")
	h.without()
	h.are("/etc/pannier/agent.hcl", "/var/lib/pannier/ledger", "/var/lib/pannier/plugins")

	h.Run("dpkg", "--install", "/root/next.deb")
	h.Run("mount", "-t", "pannier", "pannier:data", "/data")
	if h.Read("/data/file") == "" {
		t.Error("the volume has lost its file")
	}
	h.Run("umount", "/data")
	if out := h.Run("apt", "purge", "--yes", "pannier"); !strings.Contains(out, "/var/lib/pannier deletes them") {
		t.Errorf("it is not said how data is deleted: %s", out)
	}
	h.without()
	h.gone("/etc/pannier/agent.hcl", "/var/lib/pannier/plugins", "/var/lib/pannier/drivers", "/run/pannier",
		"/etc/systemd/system/multi-user.target.wants/pannier.service")
	h.are("/var/lib/pannier/ledger", "/var/lib/pannier/volumes")

	h.Run("dpkg", "--install", "/root/next.deb")
	h.Run("mount", "-t", "pannier", "pannier:data", "/data")
	h.Run("umount", "/data")
	h.Run("dpkg", "--remove", "pannier")
	h.Run("mount", "-t", "tmpfs", "others", "/var/lib/pannier/csi")
	h.Run("env", "PANNIER_PURGE_DATA=1", "dpkg", "--purge", "pannier")
	h.are("/var/lib/pannier/ledger")
	h.Run("umount", "/var/lib/pannier/csi")
	h.Run("dpkg", "--install", "/root/next.deb")
	h.Run("sh", "-c", "PANNIER_PURGE_DATA=1 apt purge --yes pannier")
	h.without()
	h.gone("/var/lib/pannier", "/etc/pannier")
}

// without fails unless the agent, its plugins, its drivers and their programs are gone.
func (h *host) without() {
	h.t.Helper()
	h.gone("/usr/bin/pannier", "/usr/lib/pannier", "/usr/sbin/mount.pannier", "/usr/lib/systemd/system/pannier.service",
		generator)
	for _, unit := range []string{"pannier.service", "pannier.socket"} {
		if state := h.show(unit, "ActiveState"); state != "inactive" {
			h.t.Errorf("%s is %s", unit, state)
		}
	}
	h.Eventually("no process is left", func() error {
		left, err := h.Try("sh", "-c", "cat /sys/fs/cgroup/system.slice/pannier.service/cgroup.procs 2>/dev/null")
		if err == nil && left != "" {
			ps, _ := h.Try("ps", "-eo", "pid,args")
			return errors.New(left + ps)
		}
		return nil
	})
}
