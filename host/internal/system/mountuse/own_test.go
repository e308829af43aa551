package mountuse

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// Whatever changes in the mount table is in the next one that is returned, and nothing is read in between.
func TestOwn(t *testing.T) {
	testbin.RequireRoot(t, "what changes in the mount table")
	dir := tempDir(t)
	at, moved := filepath.Join(dir, "at"), filepath.Join(dir, "moved")
	mount(t, "below", dir, "tmpfs", 0) // a private one, out of which mounts can be moved
	check.NoError(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	check.NoError(t, os.Mkdir(at, 0o700))
	check.NoError(t, os.Mkdir(moved, 0o700))
	mounted := func(path string) *mountinfo.Info {
		t.Helper()
		return topmost(check.Must(Own())(t), path)
	}
	if m := mounted(at); m != nil {
		t.Fatalf("nothing is mounted, and it has %v", m)
	}
	for range 100 { // also at once after a read
		check.NoError(t, unix.Mount("one", at, "tmpfs", 0, ""))
		if mounted(at) == nil {
			t.Fatal("it is mounted, and missing")
		}
		check.NoError(t, unix.Unmount(at, 0))
		if mounted(at) != nil {
			t.Fatal("it is unmounted, and still there")
		}
	}
	mount(t, "one", at, "tmpfs", 0)
	if m := mounted(at); m == nil || ReadOnly(m) {
		t.Fatalf("it is mounted: %v", m)
	}
	check.NoError(t, unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	if m := mounted(at); !ReadOnly(m) {
		t.Errorf("the mount is read-only now: %v", m)
	}
	check.NoError(t, unix.Mount("", at, "", unix.MS_REMOUNT, ""))
	check.NoError(t, unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if m := mounted(at); !ReadOnly(m) {
		t.Errorf("the file system is read-only now: %v", m)
	}
	check.NoError(t, unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}))
	if m := mounted(at); !slices.Contains(strings.Split(m.Options, ","), "nosuid") {
		t.Errorf("it has nosuid now: %v", m)
	}
	check.NoError(t, unix.Mount(at, moved, "", unix.MS_MOVE, ""))
	t.Cleanup(func() { _ = unix.Unmount(moved, unix.MNT_DETACH) })
	if mounted(at) != nil || mounted(moved) == nil {
		t.Error("it is elsewhere now")
	}
	before, again := check.Must(Own())(t), check.Must(Own())(t)
	if &before[0] != &again[0] {
		t.Error("the table was read again although nothing has changed")
	}
}
