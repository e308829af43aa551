package mounts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func resolved(t *testing.T, path string) string {
	t.Helper()
	p, err := filepath.EvalSymlinks(path)
	check.NoError(t, err)
	return p
}

func symlink(t *testing.T, to, path string) {
	t.Helper()
	check.NoError(t, os.Symlink(to, path))
}

// mount mounts, and unmounts at the end of the test.
func mount(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		t.Fatalf("mount %s on %s: %v", source, target, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

func newLayout(t *testing.T) Layout {
	t.Helper()
	return Layout{Dir: resolved(t, t.TempDir())}
}

// target makes the directory that a driver mounts on.
func target(t *testing.T, l Layout) string {
	t.Helper()
	path := l.Target("d", redis, data, rw, "r")
	check.NoError(t, l.Make(path))
	return path
}

func TestAtTellsWhatIsMounted(t *testing.T) {
	testbin.RequireRoot(t, "what the mount table says of real mounts")
	l := newLayout(t)
	path := target(t, l)
	if m, err := At(path); err != nil || m != nil {
		t.Fatalf("nothing is mounted, and At says %v, %v", m, err)
	}
	mount(t, "first", path, "tmpfs", 0)
	first, err := At(path)
	check.NoError(t, err)
	if first == nil || first.Path != path || first.Source != "first" || first.FSType != "tmpfs" || first.Root != "/" ||
		first.ReadOnly {
		t.Fatalf("got %+v", first)
	}

	bound := l.Target("d", redis, data, rw, "bound")
	check.NoError(t, l.Make(bound))
	mount(t, path, bound, "", unix.MS_BIND)
	b, err := At(bound)
	check.NoError(t, err)
	if !b.Same(*first) {
		t.Errorf("a bind mount of it is not the same: %+v, %+v", b, first)
	}
	check.NoError(t, unix.Mount("", bound, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if b, err = At(bound); err != nil || !b.ReadOnly || b.Same(*first) || !strings.Contains(b.String(), "read-only") {
		t.Errorf("a read-only bind mount is %+v, %v", b, err)
	}

	mount(t, "second", path, "tmpfs", unix.MS_RDONLY)
	second, err := At(path)
	check.NoError(t, err)
	if second.Source != "second" || !second.ReadOnly || second.Same(*first) {
		t.Errorf("the mount on top is %+v", second)
	}
	// The mount is writable, but the file system is not.
	check.NoError(t, unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT, ""))
	if second, err = At(path); err != nil || !second.ReadOnly {
		t.Errorf("a read-only file system is %+v, %v", second, err)
	}

	below, err := Below(l.Dir)
	check.NoError(t, err)
	var sources []string
	for _, m := range below {
		sources = append(sources, m.Source)
	}
	if got := strings.Join(sources, " "); got != "first first second" {
		t.Errorf("below %s there are %s", l.Dir, got)
	}
	if none, err := Below(l.Dir + "/d/per"); err != nil || len(none) != 0 {
		t.Errorf("a folder with a part of the name has %v, %v", none, err)
	}
}

func TestAtReadsOddNames(t *testing.T) {
	testbin.RequireRoot(t, "mount points with spaces in their names")
	path := filepath.Join(resolved(t, t.TempDir()), "a b\\040\tc")
	check.NoError(t, os.Mkdir(path, 0o700))
	mount(t, "odd", path, "tmpfs", 0)
	if m, err := At(path); err != nil || m == nil || m.Source != "odd" {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestBlockDeviceOnAFile(t *testing.T) {
	testbin.RequireRoot(t, "block devices")
	l := newLayout(t)
	path := l.Target("d", redis, data, Usage{AttachmentMode: claim.BlockDevice, AccessMode: claim.SingleNodeWriter}, "r")
	check.NoError(t, l.Make(filepath.Dir(path)))
	check.NoError(t, os.WriteFile(path, nil, 0o600))
	if number, err := Device(path); number != "" || err != nil {
		t.Fatalf("a file is a block device: %q, %v", number, err)
	}
	mount(t, loop(t), path, "", unix.MS_BIND)
	if number, err := Device(path); number == "" || err != nil {
		t.Errorf("the loop device is none: %q, %v", number, err)
	}
	if m, err := At(path); err != nil || m == nil {
		t.Errorf("the bind mount of the device is not in the table: %v, %v", m, err)
	}
	check.NoError(t, l.Unmount(path))
	check.NoError(t, l.Remove(path))
	if number, err := Device(path); number != "" || err != nil {
		t.Errorf("what is not there: %q, %v", number, err)
	}
	if number, err := Device("/dev/null"); number != "" || err != nil {
		t.Errorf("a character device: %q, %v", number, err)
	}
}

func loop(t *testing.T) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	check.NoError(t, os.WriteFile(image, nil, 0o600))
	check.NoError(t, os.Truncate(image, 1<<20))
	out, err := exec.Command("losetup", "--find", "--show", image).Output()
	if err != nil {
		t.Fatalf("losetup: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	return device
}

func TestUnmountTakesAStackAway(t *testing.T) {
	testbin.RequireRoot(t, "unmounting")
	l := newLayout(t)
	path := target(t, l)
	for range 3 {
		mount(t, "stacked", path, "tmpfs", 0)
	}
	check.NoError(t, l.Unmount(path))
	if m, err := At(path); m != nil || err != nil {
		t.Errorf("%v is left, %v", m, err)
	}
	check.NoError(t, l.Unmount(path)) // nothing is there: no error
}

// TestUnmountBelow: what a driver has mounted below a staging path is its own. Below a target it is somebody else's.
func TestUnmountBelow(t *testing.T) {
	testbin.RequireRoot(t, "unmounting")
	l := newLayout(t)
	for _, path := range []string{l.Staging("d", data, rw), target(t, l)} {
		own := filepath.Join(path, "a", "own")
		check.NoError(t, os.MkdirAll(own, 0o700))
		mount(t, "own", own, "tmpfs", 0)
		check.NoError(t, l.Unmount(path))
		m, err := At(own)
		if check.NoError(t, err); (m == nil) != strings.Contains(path, "/staging/") {
			t.Errorf("below %s there is %v", path, m)
		}
	}
}

func TestUnmountIsNeverLazy(t *testing.T) {
	testbin.RequireRoot(t, "busy mounts")
	l := newLayout(t)
	path := target(t, l)
	mount(t, "busy", path, "tmpfs", 0)
	f, err := os.Create(filepath.Join(path, "open"))
	check.NoError(t, err)
	defer f.Close()
	if err := l.Unmount(path); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), path) {
		t.Errorf("unmounting what is busy: %v", err)
	}
	if m, err := At(path); m == nil || err != nil {
		t.Errorf("the busy mount is gone: %v", err)
	}
	if err := l.Remove(path); err == nil {
		t.Error("a mount point was removed")
	}
	f.Close()
	check.NoError(t, l.Unmount(path))
}

func TestOnlyDriversFoldersAreTouched(t *testing.T) {
	testbin.RequireRoot(t, "unmounting elsewhere")
	l := newLayout(t)
	elsewhere := filepath.Join(l.Dir, "d", "elsewhere", "x")
	check.NoError(t, os.MkdirAll(elsewhere, 0o700))
	mount(t, "foreign", elsewhere, "tmpfs", 0)
	for _, path := range []string{
		elsewhere, l.Dir, l.Driver("d"), l.Driver("d") + "/staging", "/tmp", l.Dir + "/../x/staging/y",
		l.Driver("d") + "/staging/../elsewhere/x",
	} {
		for what, err := range map[string]error{"Make": l.Make(path), "Remove": l.Remove(path), "Unmount": l.Unmount(path)} {
			if !errors.Is(err, ErrOutside) {
				t.Errorf("%s %s: %v, want ErrOutside", what, path, err)
			}
		}
	}
	if m, _ := At(elsewhere); m == nil {
		t.Error("the foreign mount is gone")
	}
}

// A driver in a container can put links into its directory; they are not followed.
func TestLinksAreRefused(t *testing.T) {
	for name, to := range map[string]string{
		"out, absolute": "", "out, relative": "../../../../out",
		"inside": "../../inside",
	} {
		t.Run(name, func(t *testing.T) {
			base := resolved(t, t.TempDir())
			l := Layout{Dir: filepath.Join(base, "csi")}
			out, inside := filepath.Join(base, "out"), filepath.Join(l.Driver("d"), "inside")
			if to == "" {
				to = out
			}
			path := l.Staging("d", data, rw)
			for _, dir := range []string{out, inside} {
				check.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Base(path)), 0o700))
			}
			namespace := filepath.Dir(filepath.Dir(path)) // d/staging/default, and "data" in it is the link
			check.NoError(t, os.MkdirAll(namespace, 0o700))
			symlink(t, to, filepath.Join(namespace, data.ID))
			if err := l.Make(path); err == nil {
				t.Error("Make went through the link")
			}
			if err := l.Make(filepath.Join(path, "deeper")); err == nil {
				t.Error("Make went through the link")
			}
			if err := l.Remove(path); err == nil {
				t.Error("Remove went through the link")
			}
			for _, dir := range []string{out, inside} {
				entries, err := os.ReadDir(filepath.Join(dir, filepath.Base(path)))
				if err != nil || len(entries) != 0 {
					t.Errorf("%s was changed: %v, %v", dir, entries, err)
				}
			}
		})
	}
}

// A driver in a container can exchange a directory of its own with a link at any time. What the link leads to is not
// unmounted.
func TestUnmountBesideALink(t *testing.T) {
	testbin.RequireRoot(t, "unmounting")
	base := resolved(t, t.TempDir())
	l := Layout{Dir: filepath.Join(base, "csi")}
	path := l.Staging("d", data, rw)
	volume, link := filepath.Dir(path), filepath.Join(l.Driver("d"), "link")
	foreign := filepath.Join(base, "foreign", filepath.Base(path))
	check.NoError(t, errors.Join(l.Make(path), os.MkdirAll(foreign, 0o700)))
	symlink(t, filepath.Dir(foreign), link)
	mount(t, "foreign", foreign, "tmpfs", 0)
	dir, err := os.Open(volume)
	check.NoError(t, err)
	t.Cleanup(func() { dir.Close() })
	own := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	t.Cleanup(func() {
		for unix.Unmount(own, 0) == nil {
		}
	})

	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, volume, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	})
	defer swapping.Wait()
	defer close(stop)
	for n := range 1000 {
		check.NoError(t, unix.Mount("own", own, "tmpfs", 0, ""))
		_ = l.Unmount(path) // an error, if a link is there now
		if m, err := At(foreign); err != nil || m == nil {
			t.Fatalf("after %d tries the mount that the link leads to is unmounted (%v)", n+1, err)
		}
		for unix.Unmount(own, 0) == nil {
		}
	}
}

func TestMakeRefusesALinkAsTheDirectoryItself(t *testing.T) {
	l := newLayout(t)
	path := l.Staging("d", data, rw)
	check.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	symlink(t, t.TempDir(), path)
	if err := l.Make(path); err == nil {
		t.Error("a link was taken for the directory")
	}
}

func TestMakeIsPrivateAndRepeatable(t *testing.T) {
	l := newLayout(t)
	path := target(t, l)
	check.NoError(t, l.Make(path))
	for p := path; p != l.Dir; p = filepath.Dir(p) {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
}

func TestRemoveLeavesNonEmptyDirectories(t *testing.T) {
	l := newLayout(t)
	path, sibling := target(t, l), l.Target("d", redis, data, rw, "sibling")
	check.NoError(t, l.Make(sibling))
	file := filepath.Join(path, "file")
	check.NoError(t, os.WriteFile(file, nil, 0o600))
	if err := l.Remove(path); !errors.Is(err, ErrHoldsData) {
		t.Errorf("a directory with a file in it: %v", err)
	}
	check.NoError(t, os.Remove(file))
	check.NoError(t, l.Remove(path))
	if _, err := os.Stat(sibling); err != nil {
		t.Errorf("the sibling is gone: %v", err)
	}
	check.NoError(t, l.Remove(path)) // again: no error

	check.NoError(t, os.WriteFile(path, []byte("data"), 0o600))
	if err := l.Remove(path); !errors.Is(err, ErrHoldsData) {
		t.Errorf("a file with data: %v", err)
	}
	check.NoError(t, os.Truncate(path, 0))
	check.NoError(t, l.Remove(path))
	check.NoError(t, l.Remove(sibling))
	if entries, err := os.ReadDir(filepath.Join(l.Driver("d"), workloadDir)); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if err := l.Remove(l.Staging("never", data, rw)); err != nil {
		t.Errorf("a driver without a folder: %v", err)
	}
	if _, err := os.Stat(l.Driver("never")); err == nil {
		t.Error("Remove made a folder")
	}
}

// Volumes of one namespace share a parent directory, which is made and removed concurrently.
func TestMakeBesideRemove(t *testing.T) {
	l := newLayout(t)
	var wg sync.WaitGroup
	for _, id := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			path := l.Staging("d", claim.VolumeRef{Namespace: "shared", ID: id}, rw)
			for range 300 {
				if err := l.Make(path); err != nil {
					t.Errorf("make: %v", err)
					return
				}
				if _, err := os.Stat(path); err != nil {
					t.Errorf("it was made and is not there: %v", err)
					return
				}
				if err := l.Remove(path); err != nil {
					t.Errorf("remove: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}
