package testhost

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/powerloss"
)

// Disk is a small file system of a host's own, at its data directory.
type Disk struct {
	t           testing.TB
	dir, filler string
}

// NewDisk makes a file system of a size in bytes and mounts it at the host's data directory, before the host is
// started. It goes with the host.
func (h *Host) NewDisk(t testing.TB, size int64) *Disk {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(image)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close(), os.Mkdir(h.Path("data"), 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, h.Path("data")},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	return &Disk{t: t, dir: h.Path("data"), filler: h.Path("data/filler")}
}

// Leave fills the disk until only that many bytes are free, or frees what it has filled.
func (d *Disk) Leave(free int64) {
	d.t.Helper()
	if err := os.Remove(d.filler); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Fatal(err)
	}
	f, err := os.OpenFile(d.filler, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		d.t.Fatal(err)
	}
	for more := int64(s.Bavail)*s.Bsize - free; more > 0; more /= 2 { // the file's own blocks take some
		if err := unix.Fallocate(int(f.Fd()), 0, 0, more); !errors.Is(err, unix.ENOSPC) {
			if err != nil {
				d.t.Fatal(err)
			}
			return
		}
	}
}

// Freeze suspends all writes to the disk, until end or the end of the test.
func (d *Disk) Freeze() (end func()) {
	d.t.Helper()
	return powerloss.Freeze(d.t, d.dir)
}

// LeaveInodes makes files until only that many inodes are free, or removes those that it has made.
func (d *Disk) LeaveInodes(free uint64) {
	d.t.Helper()
	if err := os.RemoveAll(d.filler); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Mkdir(d.filler, 0o700); err != nil {
		d.t.Fatal(err)
	}
	for n := 0; ; n++ {
		var s unix.Statfs_t
		if err := unix.Statfs(d.dir, &s); err != nil {
			d.t.Fatal(err)
		}
		if s.Ffree <= free {
			return
		}
		err := os.WriteFile(filepath.Join(d.filler, strconv.Itoa(n)), nil, 0o600)
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			d.t.Fatal(err)
		}
	}
}
