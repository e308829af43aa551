// Package powerloss gives tests a disk that loses its power. Tests need root.
package powerloss

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
		shutDown(t, dir)
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

// shutDown makes a file system refuse to write anything more, its journal included: XFS_IOC_GOINGDOWN with
// XFS_FSOP_GOING_FLAGS_NOLOGFLUSH, and EXT4_IOC_SHUTDOWN, which has the same number.
func shutDown(t testing.TB, dir string) {
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
