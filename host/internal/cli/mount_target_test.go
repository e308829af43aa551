package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// A user who may mount by sudo, and whose folder has the mount point, cannot lead the mount elsewhere by a link that
// takes the mount point's place after the helper has looked at it.
func TestMountPointThatIsReplaced(t *testing.T) {
	testbin.RequireRoot(t, "mounts, and folders of other users")
	runtime.LockOSThread() // and its mount namespace ends with the thread
	check.NoError(t, unix.Unshare(unix.CLONE_NEWNS))
	check.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir := t.TempDir()
	check.NoError(t, unix.Mount("test", dir, "tmpfs", 0, "mode=755"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	check.NoError(t, unix.Mount("test", "/run", "tmpfs", 0, "mode=755")) // mount(8) notes there what it has mounted
	const nobody = 65534
	t.Setenv("SUDO_UID", fmt.Sprint(nobody))
	volume, home, victim := filepath.Join(dir, "volume"), filepath.Join(dir, "home"), filepath.Join(dir, "etc")
	point := filepath.Join(home, "data")
	for _, d := range []string{volume, home, victim, point, "/run/mount"} {
		check.NoError(t, os.Mkdir(d, 0o755))
	}
	check.NoError(t, unix.Mount(volume, volume, "", unix.MS_BIND, ""))
	check.NoError(t, os.WriteFile(filepath.Join(volume, "shadow"), nil, 0o644))
	check.NoError(t, errors.Join(os.Chown(home, nobody, nobody), os.Chown(point, nobody, nobody)))

	target, err := openMountPoint(point)
	check.NoError(t, err)
	defer target.Close()
	check.NoError(t, os.Rename(point, point+".old"))
	check.NoError(t, os.Symlink(victim, point))
	r := &mountRequest{target: point, flags: []string{"noexec", "noatime"}, readOnly: true}
	check.NoError(t, bindVolume(t.Context(), r, &hostv1.Mount{HostPath: volume}, target))
	if _, err := os.Stat(filepath.Join(victim, "shadow")); err == nil {
		t.Error("the volume is mounted where the link leads")
	}
	if _, err := os.Stat(filepath.Join(point+".old", "shadow")); err != nil {
		t.Errorf("the volume is not mounted at the mount point: %v", err)
	}
	var st unix.Statfs_t
	check.NoError(t, unix.Statfs(point+".old", &st))
	const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOATIME
	if st.Flags&want != want {
		t.Errorf("the mount's flags are %#x; want %#x", st.Flags, want)
	}
	if _, err := openMountPoint(point); err == nil {
		t.Error("a link is taken for a mount point")
	}
}
