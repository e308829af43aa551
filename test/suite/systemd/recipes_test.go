package systemd

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/docpages"
)

// recipe is a page of docs/recipes that is followed on a host.
type recipe struct {
	*docpages.Pages
	h    *host
	page string
}

// follow opens a page, whose commands need programs of Debian packages.
func follow(t *testing.T, page string, programs map[string]string) *recipe {
	t.Helper()
	for program, of := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s (Debian: %s); not covered: docs/recipes/%s", program, of, page)
		}
	}
	return &recipe{Pages: docpages.Read(t, "recipes/"+page), page: page}
}

// file writes a file of the page; relative paths are in root's home.
func (r *recipe) file(paths ...string) {
	r.h.t.Helper()
	for _, path := range paths {
		at := path
		if !filepath.IsAbs(at) {
			at = "/root/" + at
		}
		r.h.Write(at, r.Block(r.page, "file", path), 0o644)
	}
}

// run runs commands of the page, and returns what they print.
func (r *recipe) run(name string) string {
	r.h.t.Helper()
	lines := r.Block(r.page, "run", name)
	out, err := r.h.Try("env", "LC_ALL=C.UTF-8", "sh", "-euc", "cd /root\n"+lines)
	if err != nil {
		r.h.t.Fatalf("%s, %s: %v\n%s%s\n%s", r.page, name, err, lines, out, r.h.Journal())
	}
	r.h.t.Logf("%s, %s:\n%s%s", r.page, name, lines, out)
	return out
}

// local makes a booted host with csi-local and the helpers of mount(8).
func (r *recipe) local(t *testing.T) {
	t.Helper()
	r.h = withVolumes(t)
	r.h.Eventually("the driver is healthy", func() error {
		if out, err := r.h.Try("pannier", "driver", "status", "local"); err != nil || !strings.Contains(out, "healthy") {
			return errors.Join(err, errors.New(out))
		}
		return nil
	})
}

// TestRecipeFstab follows docs/recipes/fstab.md.
func TestRecipeFstab(t *testing.T) {
	t.Parallel()
	r := follow(t, "fstab.md", map[string]string{"systemd-sysusers": "systemd"})
	r.local(t)
	h := r.h
	r.run("volume")
	r.run("user")
	r.file("/etc/systemd/system/notes.service")
	r.run("start")
	starts := func(n int) {
		t.Helper()
		h.is("notes.service", "active")
		h.Eventually("the service has written", func() error {
			if got := strings.Count(h.Read("/data/notes/starts"), "\n"); got != n {
				return errors.New("it has not: " + h.Read("/data/notes/starts"))
			}
			return nil
		})
		if !h.mounted("/data") || !h.claimed("data") {
			t.Errorf("mounted: %t, claimed: %t", h.mounted("/data"), h.claimed("data"))
		}
	}
	starts(1)
	h.Reboot()
	starts(2)
	if out := r.run("look"); !strings.Contains(out, "mount.data.a") {
		t.Errorf("it is not said who has the volume: %s", out)
	}
	r.run("stop")
	if h.mounted("/data") || h.claimed("data") {
		t.Errorf("after the stop: mounted: %t, claimed: %t", h.mounted("/data"), h.claimed("data"))
	}

	h.Write("/root/other.hcl", `
workload "other" {
  volume "data" {
    source      = "data"
    destination = "/srv"
  }
}
`, 0o644)
	h.Run("pannier", "workload", "start", "/root/other.hcl")
	h.Run("sh", "-c", "sed -i 's/ pannier _netdev/ pannier timeout=1,_netdev/' /etc/fstab; systemctl daemon-reload")
	if out, err := h.Try("systemctl", "start", "notes.service"); err == nil {
		t.Errorf("the service is started without its volume: %s", out)
	}
	if h.Read("/data/notes/starts") != "" {
		t.Error("the service has written below the mount point")
	}
}

// TestRecipeBackup follows docs/recipes/backup.md.
func TestRecipeBackup(t *testing.T) {
	t.Parallel()
	r := follow(t, "backup.md", map[string]string{"restic": "restic"})
	r.local(t)
	h := r.h
	h.create("data")
	h.Run("mkdir", "/data")
	h.Run("mount", "-t", "pannier", "pannier:data", "/data")
	h.Run("sh", "-c", "mkdir /data/papers; echo first >/data/papers/one; echo second >/data/two; chown 65534 /data/two")
	r.run("repository")
	r.file("/usr/local/sbin/backup-volume", "/etc/systemd/system/backup-data.service",
		"/etc/systemd/system/backup-data.timer")
	r.run("enable")
	h.is("backup-data.timer", "active")
	if out := r.run("backup"); !strings.Contains(out, "1 snapshots") {
		t.Errorf("not one backup: %s", out)
	}
	left := func(when string) {
		t.Helper()
		if out := h.Run("pannier", "volume", "list"); strings.Contains(out, "data-backup") {
			t.Errorf("%s a volume is left: %s", when, out)
		}
		if out := h.Run("pannier", "volume", "snapshot", "list", "-driver", "local"); strings.Contains(out, "data-") {
			t.Errorf("%s a snapshot is left: %s", when, out)
		}
		if out := h.Run("cat", "/proc/mounts"); strings.Contains(out, "backup-volume") {
			t.Errorf("%s a mount is left: %s", when, out)
		}
	}
	left("after a backup")

	h.Run("sh", "-c", "rm -r /data/papers; echo damaged >/data/two")
	r.run("restore")
	one, two, owner := h.Read("/data/papers/one"), h.Read("/data/two"), h.Run("stat", "--format=%u", "/data/two")
	if one != "first\n" || two != "second\n" || owner != "65534\n" {
		t.Errorf("after the restore there are %q, %q of user %s", one, two, owner)
	}

	h.Run("mv", "/srv/restic", "/srv/away")
	if out, err := h.Try("systemctl", "start", "backup-data.service"); err == nil {
		t.Errorf("a backup without a repository succeeds: %s", out)
	}
	left("after a failure")
	h.Run("mv", "/srv/away", "/srv/restic")
	h.Run("sh", "-c", "echo third >/data/three")
	h.Write("/root/left.hcl", strings.Replace(fmt.Sprintf(volume, "data-backup"), "writer", "reader-only", 1), 0o644)
	h.Run("pannier", "volume", "create", "/root/left.hcl") // as after a kill
	if out := r.run("backup"); !strings.Contains(out, "2 snapshots") {
		t.Errorf("not two backups: %s", out)
	}
}

// TestRecipeAnsible follows docs/recipes/ansible.md.
func TestRecipeAnsible(t *testing.T) {
	t.Parallel()
	r := follow(t, "ansible.md", map[string]string{"ansible-playbook": "ansible-core"})
	if err := exec.Command("/usr/bin/python3", "-c", "import apt").Run(); err != nil {
		t.Skipf("needs python3-apt (Debian: python3-apt); not covered: docs/recipes/ansible.md: %v", err)
	}
	h := debian(t)
	r.h = h
	h.put("1.0.0", "/root/pannier.deb")
	h.Boot()
	r.file("hosts.ini", "pannier.yaml", "agent.hcl")
	if out := r.run("play"); !strings.Contains(out, "failed=0") {
		t.Errorf("it fails: %s", out)
	}
	h.Run("sh", "-c", "date >/data/file")
	if !h.mounted("/data") || !h.claimed("data") {
		t.Errorf("mounted: %t, claimed: %t", h.mounted("/data"), h.claimed("data"))
	}
	if out := r.run("play"); !strings.Contains(out, "changed=0") {
		t.Errorf("the second time something is changed: %s", out)
	}
	h.Run("sh", "-c", "echo 'nonsense = 1' >>/root/agent.hcl")
	out, err := h.Try("env", "LC_ALL=C.UTF-8", "sh", "-c",
		"cd /root && "+r.Block(r.page, "run", "play"))
	if err == nil || !strings.Contains(out, "nonsense") {
		t.Errorf("a configuration with a mistake: %v: %s", err, out)
	}
	if strings.Contains(h.Read("/etc/pannier/agent.hcl"), "nonsense") {
		t.Error("a configuration with a mistake is in place")
	}
}
