package systemd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// volume is a spec of a volume.
const volume = `
id        = "%s"
type      = "csi"
plugin_id = "local"
capacity_min = "16MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
mount_options {
  fs_type = "ext4"
}
`

// withVolumes makes a booted host with volumes and the helpers of mount(8).
func withVolumes(t *testing.T, ids ...string) *host {
	t.Helper()
	h := newHost(t, "pannier.socket")
	h.helpers()
	h.Boot()
	for _, id := range ids {
		h.create(id)
	}
	return h
}

// generator orders mount units.
const generator = "/usr/lib/systemd/system-generators/pannier-generator"

// helpers makes the links of docs/mount.md.
func (h *host) helpers() {
	h.t.Helper()
	h.Run("mkdir", "-p", filepath.Dir(generator))
	h.Run("ln", "-s", "../bin/pannier", "/usr/sbin/mount.pannier")
	h.Run("ln", "-s", "../bin/pannier", "/usr/sbin/umount.pannier")
	h.Run("ln", "-s", "../../../bin/pannier", generator)
}

func (h *host) create(id string) {
	h.t.Helper()
	h.Write("/root/"+id+".hcl", fmt.Sprintf(volume, id), 0o644)
	h.Eventually("volume "+id+" is there", func() error { // the driver may be starting
		if out, err := h.Try("pannier", "volume", "create", "/root/"+id+".hcl"); err != nil {
			return errors.New(out)
		}
		return nil
	})
}

// claimed reports whether anybody has a volume.
func (h *host) claimed(id string) bool {
	h.t.Helper()
	return !strings.Contains(h.Run("pannier", "volume", "explain", id), "nobody holds it")
}

// released waits until nobody has a volume.
func (h *host) released(id string) {
	h.t.Helper()
	h.Eventually(id+" is released", func() error {
		if h.claimed(id) {
			return errors.New(h.Run("pannier", "volume", "explain", id))
		}
		return nil
	})
}

// mounted reports whether something but an automount is mounted at a path.
func (h *host) mounted(path string) bool {
	h.t.Helper()
	out, _ := h.Try("findmnt", "--noheadings", "--output=FSTYPE", "--mountpoint="+path)
	return strings.Contains(out, "ext4")
}

// refused runs a command that must fail with an exit code, and say some words.
func (h *host) refused(code int, words []string, args ...string) {
	h.t.Helper()
	out, err := h.Try(args...)
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != code {
		h.t.Errorf("%s: %v, want exit code %d\n%s", strings.Join(args, " "), err, code, out)
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			h.t.Errorf("%s: %q is not in %s", strings.Join(args, " "), word, out)
		}
	}
}

// TestMount mounts and unmounts volumes by hand.
func TestMount(t *testing.T) {
	t.Parallel()
	h := withVolumes(t, "data", "other")
	h.Run("mkdir", "-p", "/data", "/mnt/with-a_strange name")
	h.Run("sh", "-c", "cd /mnt && mount -t pannier data /data")
	h.Run("sh", "-c", "echo hello >/data/file")
	if !h.claimed("data") {
		t.Error("the volume is mounted, and nobody has claimed it")
	}
	h.Run("mount", "-t", "pannier", "pannier:data", "/data") // again
	if n := strings.Count(h.Run("cat", "/proc/mounts"), " /data "); n != 1 {
		t.Errorf("/data is mounted %d times", n)
	}
	if options := h.Run("findmnt", "--noheadings", "--output=OPTIONS", "/data"); !strings.Contains(options, "nosuid,nodev") {
		t.Errorf("/data has the options %s", options)
	}
	h.refused(32, []string{"data", "umount /data"}, "mount", "-t", "pannier", "pannier:other", "/data")
	h.refused(32, []string{"/data", "umount /data"}, "mount", "-t", "pannier", "-o", "ro", "pannier:data", "/data")
	h.refused(32, []string{"held by", "mount.data.a", `node "a"`, "pannier volume explain -namespace default data"},
		"mount", "-t", "pannier", "-o", "timeout=1", "pannier:data", "/mnt/with-a_strange name")
	h.Run("umount", "/data")
	if h.claimed("data") {
		t.Error("umount has returned, and the volume is claimed")
	}

	h.Run("mount", "-t", "pannier", "pannier:data", "/data")
	stop := h.Command("pannier", "workload", "stop", "mount.data.a")
	if err := stop.Start(); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the stop says what it waits for", func() error {
		if out := h.Run("pannier", "workload", "status", "mount.data.a"); !strings.Contains(out, "umount /data") {
			return errors.New(out)
		}
		return nil
	})
	if !h.claimed("data") {
		t.Error("it is released while it is mounted")
	}
	h.Run("umount", "/data")
	if err := stop.Wait(); err != nil {
		t.Error(err)
	}
	h.released("data")

	strange := "/mnt/with-a_strange name"
	h.Run("mount", "-t", "pannier", "-o", "ro,noexec", "pannier:data", strange)
	if said := h.Run("cat", strange+"/file"); said != "hello\n" {
		t.Errorf("the file says %q", said)
	}
	if out, err := h.Try("touch", strange+"/new"); err == nil {
		t.Errorf("it is not read-only: %s", out)
	}
	if options := h.Run("findmnt", "--noheadings", "--output=OPTIONS", strange); !strings.Contains(options, "noexec") {
		t.Errorf("it has the options %s", options)
	}
	h.Run("umount", strange)
	if h.claimed("data") {
		t.Error("umount has returned, and the volume is claimed")
	}
}

// TestMountRefused mounts where and what it must not.
func TestMountRefused(t *testing.T) {
	t.Parallel()
	h := withVolumes(t, "data")
	h.Run("sh", "-c", "mkdir -p /data /srv/open/data; chmod 777 /srv/open; ln -s /data /srv/link; mkdir /mnt/taken")
	h.Run("mount", "-t", "tmpfs", "mine", "/mnt/taken")
	for _, c := range []struct {
		code  int
		words []string
		args  []string
	}{
		{1, []string{"only root"}, []string{"setpriv", "--reuid=65534", "--clear-groups", "mount.pannier", "data", "/data"}},
		{1, []string{"symbolic link", "name /data"}, []string{"mount.pannier", "data", "/srv/link"}},
		{1, []string{"/srv/open", "not safe"}, []string{"mount", "-t", "pannier", "pannier:data", "/srv/open/data"}},
		{1, []string{"does not exist", "mkdir -p /no"}, []string{"mount.pannier", "data", "/no"}},
		{1, []string{"remount"}, []string{"mount.pannier", "data", "/data", "-o", "remount,ro"}},
		{1, []string{"access"}, []string{"mount", "-t", "pannier", "-o", "access=everyone", "pannier:data", "/data"}},
		{1, []string{"timeout"}, []string{"mount", "-t", "pannier", "-o", "timeout=soon", "pannier:data", "/data"}},
		{1, []string{"pannier:ID"}, []string{"mount", "-t", "pannier", "data", "/data"}}, // from /
		{1, []string{"id of a volume"}, []string{"mount", "-t", "pannier", "pannier:no/volume", "/data"}},
		{32, []string{"something else", "mine"}, []string{"mount", "-t", "pannier", "pannier:data", "/mnt/taken"}},
		{32, []string{"none", "pannier volume status -namespace default"}, []string{"mount", "-t", "pannier", "none", "/data"}},
		{32, []string{"mount flag is not allowed", "allowed_mount_flags"}, []string{"mount", "-t", "pannier", "-o", "errors=panic", "pannier:data", "/data"}},
		{32, []string{"mount namespace", "nsenter"}, []string{"unshare", "--mount", "mount", "-t", "pannier", "pannier:data", "/data"}},
	} {
		h.refused(c.code, c.words, c.args...)
	}
	h.released("data")
	for _, path := range []string{"/data", "/srv/open/data", "/no"} {
		if h.mounted(path) {
			t.Errorf("something is mounted at %s", path)
		}
	}
}

// TestUnmountedWithoutTheHelper unmounts a volume in ways that do not call the helper, also while the agent is down:
// the claim is released, and never before.
func TestUnmountedWithoutTheHelper(t *testing.T) {
	t.Parallel()
	h := withVolumes(t, "data")
	h.Run("mkdir", "/data")
	for name, unmount := range map[string]func(){
		"umount -i": func() { h.Run("umount", "-i", "/data") },
		"umount -i, after a restart of the agent": func() {
			h.Run("systemctl", "restart", "pannier.service")
			if state := h.Run("pannier", "workload", "status", "mount.data.a"); strings.Contains(state, "stopping") {
				t.Errorf("after a restart of the agent the mount is %s", state)
			}
			h.Run("umount", "-i", "/data")
		},
		"umount -i while the agent is down": func() {
			h.Run("systemctl", "stop", "pannier.socket", "pannier.service")
			h.Run("umount", "-i", "/data")
			h.Run("systemctl", "start", "pannier.service")
		},
		"umount while the agent is down": func() {
			h.Run("systemctl", "stop", "pannier.socket", "pannier.service")
			h.Run("umount", "/data")
			h.Run("systemctl", "start", "pannier.service")
		},
		"moved": func() {
			h.Run("sh", "-c", "mkdir -p /elsewhere && mount --bind /data /elsewhere && umount -i /data /elsewhere")
		},
	} {
		h.Run("mount", "-t", "pannier", "pannier:data", "/data")
		h.Run("mount", "-t", "tmpfs", "change", "/mnt")
		h.Run("umount", "/mnt")
		if !h.claimed("data") {
			t.Errorf("%s: it is released while it is mounted", name)
		}
		t.Log(name)
		unmount()
		h.released("data")
	}
}

// TestFstab boots a host whose fstab has volumes, one of which is mounted when it is used, with the unit of the
// documentation.
func TestFstab(t *testing.T) {
	t.Parallel()
	if known, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(known), "autofs") {
		t.Skip("needs the kernel's autofs; not covered: fstab and automount units")
	}
	h := newHost(t, "pannier.socket")
	h.helpers()
	h.Write("/etc/fstab", `
pannier:data /data pannier _netdev,nofail 0 0
pannier:lazy /lazy pannier _netdev,nofail,x-systemd.automount,x-systemd.requires=pannier.service 0 0
`, 0o644)
	h.Write("/etc/systemd/system/srv-files.mount", page(t, "mount.md", "# /etc/systemd/system/srv-files.mount\n"), 0o644)
	h.Run("systemctl", "enable", "srv-files.mount")
	h.unit("volumes.service", `[Unit]
Requires=pannier.service
After=pannier.service
Before=data.mount srv-files.mount
DefaultDependencies=no
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'until pannier volume create /root/data.hcl && pannier volume create /root/lazy.hcl && pannier volume create /root/files.hcl; do sleep 0.1; done'`)
	for _, id := range []string{"data", "lazy", "files"} {
		h.Write("/root/"+id+".hcl", fmt.Sprintf(volume, id), 0o644)
	}
	h.unit("app.service", `[Unit]
RequiresMountsFor=/data
After=remote-fs.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo mine >/data/app'`)
	h.Boot()
	for _, unit := range []string{"data.mount", "srv-files.mount", "app.service", "remote-fs.target", "multi-user.target"} {
		h.is(unit, "active")
	}
	if log := h.Journal(); strings.Contains(log, "ordering cycle") {
		t.Errorf("the units' order is a cycle:\n%s", log)
	}
	if !h.claimed("data") || h.claimed("lazy") {
		t.Errorf("claimed: data %t, lazy %t", h.claimed("data"), h.claimed("lazy"))
	}
	h.Run("mount", "-a")
	h.Run("mount", "-a")
	if n := strings.Count(h.Run("cat", "/proc/mounts"), " /data "); n != 1 {
		t.Errorf("/data is mounted %d times", n)
	}

	h.Run("systemctl", "stop", "app.service", "data.mount")
	if h.claimed("data") || h.mounted("/data") {
		t.Error("the mount's unit is stopped, and the volume is claimed")
	}
	h.Run("systemctl", "start", "app.service") // it requires the mount
	if said := h.Run("cat", "/data/app"); said != "mine\n" || !h.claimed("data") {
		t.Errorf("the file says %q; claimed: %t", said, h.claimed("data"))
	}
	h.Run("sh", "-c", "sleep 1000 >/dev/null 2>&1 </data/app & echo $! >/run/app")
	h.Run("systemctl", "restart", "pannier.service")
	h.Run("sh", "-c", "kill -0 $(cat /run/app) && test -e /data/app")
	h.is("data.mount", "active")
	h.is("app.service", "active")

	h.Run("systemctl", "start", "lazy.mount") // it was restarted with the agent, which it requires, and may be on its way
	h.Run("systemctl", "stop", "lazy.mount")
	h.released("lazy")
	h.Run("sh", "-c", "echo used >/lazy/file") // mounts it
	if !h.claimed("lazy") || !h.mounted("/lazy") {
		t.Errorf("it is used; claimed: %t, mounted: %t", h.claimed("lazy"), h.mounted("/lazy"))
	}
	h.Run("systemctl", "stop", "lazy.mount")
	h.released("lazy")
}
