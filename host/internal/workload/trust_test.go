package workload

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/test/lib/check"
)

// rightsOf binds a published volume elsewhere, as a container engine or systemd does, and returns what a user gets
// from what was put into it: the user id of a set-user-ID program, and whether a device file can be opened.
func rightsOf(t *testing.T, h *host, m MountPoint) (uid string, device bool) {
	t.Helper()
	volume := filepath.Join(h.driver.base, "external-"+m.Volume.ID)
	program, err := exec.LookPath("id")
	check.NoError(t, err)
	binary, err := os.ReadFile(program)
	check.NoError(t, err)
	check.NoError(t, errors.Join(os.Chmod(volume, 0o755), os.WriteFile(volume+"/id", binary, 0o755),
		unix.Chmod(volume+"/id", 0o4755)))
	if err := unix.Mknod(volume+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); !errors.Is(err, unix.EEXIST) {
		check.NoError(t, err)
	}
	at, err := os.MkdirTemp("", "bound") // where everyone can enter
	check.NoError(t, err)
	check.NoError(t, os.Chmod(at, 0o755))
	check.NoError(t, unix.Mount(m.HostPath, at, "", unix.MS_BIND, ""))
	defer func() { check.NoError(t, errors.Join(unix.Unmount(at, unix.MNT_DETACH), os.Remove(at))) }()
	cmd := exec.Command(at+"/id", "-u")
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	check.NoError(t, err)
	f, err := os.Open(at + "/null")
	if err == nil {
		f.Close()
	}
	return strings.TrimSpace(string(out)), err == nil
}

// A set-user-ID program or a device file that somebody has put into a volume gives nobody rights, wherever the
// volume's mount is bound.
func TestVolumesGiveNobodyRights(t *testing.T) {
	for _, driver := range []string{full, plain} {
		h := newHost(t)
		h.volume(t, driver, "data")
		w := h.start(t, spec("w", "data"))
		if uid, device := rightsOf(t, h, w.Mounts[0]); uid == "0" || device {
			t.Errorf("driver %s: a user gets user id %s, and opens a device of its own: %t", driver, uid, device)
		}
		if m := w.Mounts[0]; m.SUID || m.Dev {
			t.Errorf("driver %s: %+v", driver, m)
		}
		h.stop(t, "w")
		h.clean(t)
	}
}

// withFlags changes the mount flags of a registered volume, as a server that checks nothing would have registered it.
func (h *host) withFlags(t *testing.T, id string, flags ...string) {
	t.Helper()
	v, err := h.ledger.volume(id)
	check.NoError(t, err)
	v.MountOptions.Flags = flags
	check.NoError(t, h.ledger.add(v))
}

// A tenant's mount flags reach the driver only if its operator allows them, also those of a volume that is in the
// ledger already; and only the volume's definition gives rights to what is in the volume.
func TestMountFlagsOfATenant(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "data")
	try := func(name string, volume, workload []string, want ...string) Workload {
		t.Helper()
		h.withFlags(t, "data", volume...)
		s := spec("w", "data")
		s.Volumes[0].MountOptions.Flags = workload
		w, err := h.Start(t.Context(), s, Options{})
		switch {
		case len(want) == 0:
			check.NoError(t, err)
		case err == nil:
			t.Errorf("%s: it is mounted", name)
		default:
			for _, word := range want {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %v, want %q", name, err, word)
				}
			}
			if c := h.ledger.claims(); len(c) > 0 || h.count("stage data")+h.count("attach data") > 0 {
				t.Errorf("%s: claimed %v, and did %v", name, c, h.happened())
			}
			return w
		}
		uid, device := rightsOf(t, h, w.Mounts[0])
		allowed := drivers.Asks(volume, "suid", "nosuid") && len(workload) == 0
		if (uid == "0") != allowed || device != allowed {
			t.Errorf("%s: a user gets user id %s, and a device: %t", name, uid, device)
		}
		h.stop(t, "w")
		return w
	}
	try("a panic", []string{"noatime,errors=panic"}, nil, `volume "data"`, `"errors"`, "allowed_mount_flags", `csi_driver "full"`)
	try("a panic of the workload", nil, []string{"errors=panic"}, `"errors"`)
	try("rights", []string{"suid"}, nil, `"suid"`)
	try("all at once", []string{"noatime,errors=panic", "suid"}, nil, `"errors", "suid": `, `allowed_mount_flags = ["errors", "suid"]`)
	try("a secret", []string{"password=hunter2"}, nil, `"password"`)
	h.drivers.set(full, func(d *drivers.Driver) {
		d.AllowedMountFlags = []string{"suid", "dev", "errors=remount-ro"}
	})
	try("a panic beside another value", []string{"errors=panic"}, nil, `["suid", "dev", "errors=remount-ro", "errors"]`)
	try("rights of the workload", nil, []string{"suid"}, `"suid"`, "the volume's definition must have it")
	try("devices of the workload", []string{"suid"}, []string{"suid", "dev"}, `"dev"`, "the volume's definition must have it")
	try("harmless", []string{"noatime", "ro,discard", "nolock,nfsvers=4.1,timeo=600", "errors=remount-ro"}, nil)
	try("by the definition", []string{"suid", "dev"}, nil)
	try("withdrawn by the workload", []string{"suid", "dev"}, []string{"noatime"})
	h.clean(t)
}
