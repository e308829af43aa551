// Package powerloss gives tests a disk that loses its power, and freezes file systems. Tests need root.
package powerloss

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// FileSystems are the types that Disk knows. They differ in what is left of a file that was not synced.
var FileSystems = []string{"ext4", "xfs"}

// Disk is DiskAt for a new directory.
func Disk(t testing.TB, fstype string) (dir string, cut func()) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check.NoError(t, err)
	return dir, DiskAt(t, fstype, dir)
}

// DiskAt mounts a new file system at dir until the test ends. cut loses what is not on the disk yet, as a loss of power
// does, and mounts the file system again: no file of it may be open.
func DiskAt(t testing.TB, fstype, dir string) (cut func()) {
	t.Helper()
	testbin.RequireRoot(t, "a loss of power")
	image := filepath.Join(t.TempDir(), "image")
	check.NoError(t, os.WriteFile(image, nil, 0o600))
	check.NoError(t, os.Truncate(image, 300<<20)) // the smallest that XFS takes
	run(t, "mkfs."+fstype, "-q", image)
	device := run(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	mount := func() {
		t.Helper()
		check.NoError(t, unix.Mount(device, dir, fstype, 0, ""))
	}
	mount()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return func() {
		t.Helper()
		ShutDown(t, dir)
		// A process that was just killed, or a child of another test before its exec, may have it open for a moment.
		check.Eventually(t, dir+" is unmounted", func() bool {
			err := unix.Unmount(dir, 0)
			if !errors.Is(err, unix.EBUSY) {
				check.NoError(t, err)
			}
			return err == nil
		})
		released(t, device)
		mount()
	}
}

// ShutDown makes a file system refuse to write anything more, its journal included: XFS_IOC_GOINGDOWN with
// XFS_FSOP_GOING_FLAGS_NOLOGFLUSH, and EXT4_IOC_SHUTDOWN, which has the same number. Every call for it answers EIO.
func ShutDown(t testing.TB, dir string) {
	t.Helper()
	const goingDown, noLogFlush = 0x8004587d, 2
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check.NoError(t, err)
	defer unix.Close(fd)
	check.NoError(t, unix.IoctlSetPointerInt(fd, goingDown, noLogFlush))
}

// released waits until the kernel has ended the file system, of which another test's mount namespace may have a copy.
func released(t testing.TB, device string) {
	t.Helper()
	check.Eventually(t, device+" is not in use", func() bool {
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			check.NoError(t, unix.Close(fd))
		}
		return err == nil
	})
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return strings.TrimSpace(string(out))
}

// Freeze suspends all writes to the file system of a directory until thaw or the end of the test. A process of its own
// freezes and thaws: it thaws when its input ends, so also when the test's process panics or is killed. Else the
// threads of that process which write to the file system would keep it from ending, for ever.
func Freeze(t testing.TB, dir string) (thaw func()) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", `fsfreeze --freeze "$1"; echo frozen; read end || fsfreeze --unfreeze "$1"`, "sh", dir)
	cmd.Stderr = os.Stderr
	end, err := cmd.StdinPipe()
	check.NoError(t, err)
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	thaw = sync.OnceFunc(func() {
		if err := errors.Join(end.Close(), cmd.Wait()); err != nil {
			t.Errorf("thaw %s: %v", dir, err)
		}
	})
	t.Cleanup(thaw)
	if _, err := io.ReadFull(out, make([]byte, len("frozen\n"))); err != nil {
		t.Fatalf("freeze %s: %v", dir, err)
	}
	return thaw
}
