// Package mountuse finds out who uses a volume, in all mount namespaces of the machine: Holders lists the copies of its
// mount and what lies on it, Left proves after an unmount that nothing of it remains, a Scene finds processes that have
// files of it open, and a Disk tells whether the kernel still uses a block device.
//
// A volume is known by what the kernel says of it (Identity), never by a path alone: paths are unmounted, mounted over,
// and the same in other namespaces.
//
// It reads text in /proc and /sys, and asks no file system but in Answers: one that hangs must not hold up the caller.
// What may hang nevertheless, such as a look at a process that waits for its file system, has a bound, and of each
// thing at most one thread of the program hangs. The fence relies on that. It uses no Holder, whose text also names the
// container (package owner), read from the engine's files.
package mountuse

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
)

// Self is the /proc directory of this process, for Read.
const Self = "/proc/self"

// Read returns the mounts that a process sees below its root directory, in the order of mounting. dir is the process's
// directory (procfs.Dir).
func Read(dir string) ([]*mountinfo.Info, error) {
	text, err := os.ReadFile(dir + "/mountinfo")
	if err != nil {
		return nil, err
	}
	table, err := mountinfo.GetMountsFromReader(bytes.NewReader(text), nil)
	if err != nil {
		return nil, fmt.Errorf("read %s/mountinfo: %w", dir, err)
	}
	return table, nil
}

// At returns what is mounted at path, which must be clean; nil: nothing is. Of several mounts on top of each other it
// is the visible one.
func At(table []*mountinfo.Info, path string) *mountinfo.Info {
	for _, m := range slices.Backward(table) {
		if m.Mountpoint == path {
			return m
		}
	}
	return nil
}

// Identity is what the kernel says of a mount of a volume: the file system, and which part of it the mount shows.
type Identity struct {
	Device string `json:"device"` // of the file system, MAJOR:MINOR: all its mounts have it
	FSType string `json:"fs_type"`
	Source string `json:"source"`
	Root   string `json:"root"` // the directory or file of the file system that is mounted
	// Unique is the mount's number, higher than each earlier mount's in this boot (statx(2), STATX_MNT_ID_UNIQUE). 0: the
	// kernel is older than 6.8, or it is not known.
	Unique uint64 `json:"unique,omitempty"`
	// Disk is the block device that it is mounted from, or that is bound there; nil: there is none, or it is not known.
	Disk *Disk `json:"disk,omitempty"`
}

// IdentityOf is what a mount table says, without Unique and Disk.
func IdentityOf(m *mountinfo.Info) Identity {
	return Identity{Device: numberText(Device(m)), FSType: m.FSType, Source: m.Source, Root: m.Root}
}

// IdentityNow is all of the identity of a mount of this process's namespace.
func IdentityNow(m *mountinfo.Info) Identity {
	i := IdentityOf(m)
	i.Unique = unique(m.Mountpoint)
	if d, ok := DiskOf(m); ok {
		i.Disk = &d
	}
	return i
}

// unique is Identity.Unique of what is visible at a path of this process's namespace.
func unique(path string) (id uint64) {
	err := asked.Do("stat "+path, bounded.Patience, func() error { // a few file systems ask their server
		st, err := stat(path, unix.STATX_MNT_ID_UNIQUE)
		if err == nil && st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
			id = st.Mnt_id
		}
		return err
	})
	if err != nil {
		return 0
	}
	return id
}

// asked are the file systems that are asked something, by their paths.
var asked bounded.Calls

// Answers asks the file system that is mounted at a path for its size and its root, and returns why it cannot be used:
// bounded.ErrNoAnswer, or the error that all calls to it may have, such as ENOTCONN of one of FUSE whose server has
// ended, or EIO of one that was shut down. One that belongs to another user does not tell.
func Answers(path string) error {
	return asked.Do(fmt.Sprint(path, unique(path)), bounded.Patience, func() error {
		var size unix.Statfs_t
		var root unix.Stat_t
		if err := cmp.Or(unix.Statfs(path, &size), unix.Stat(path, &root)); !errors.Is(err, unix.EACCES) {
			return err
		}
		return nil
	})
}

// Same reports whether two mounts show the same part of the same file system.
func (i Identity) Same(o Identity) bool {
	return i.Device == o.Device && i.Root == o.Root && i.FSType == o.FSType
}

// over reports that the file system is certainly gone, with all that was open in it: its block device is another one
// now, or the kernel, which lists the backing device of one that a server is behind for as long as it lives, does not
// list it. It opens no device.
func (i Identity) over() bool {
	if i.Disk != nil {
		return i.Disk.seq() != i.Disk.Seq
	}
	_, err := os.Lstat("/sys/class/bdi/" + i.Device)
	return served(i.FSType) && errors.Is(err, os.ErrNotExist)
}

// served reports that a server, which may hang, is behind a file system.
func served(fsType string) bool {
	return strings.HasPrefix(fsType, "fuse") || strings.HasPrefix(fsType, "nfs")
}

// Remote reports that what is behind a file system may be away, and that a call to it may hang then.
func Remote(fsType string) bool {
	return served(fsType) || slices.Contains([]string{"cifs", "smb3", "ceph", "9p", "virtiofs"}, fsType)
}

// block returns the number of the block device that was bound; ok is false if it was no block device.
func (i Identity) block() (number uint64, ok bool) {
	if i.Disk == nil || i.Disk.Number == i.Device || i.Root == "/" {
		return 0, false
	}
	return deviceNumber(i.Disk.Number, 10), true
}

// deviceNumber reads a device number, MAJOR:MINOR in a base; 0 if it is none.
func deviceNumber(text string, base int) uint64 {
	high, low, _ := strings.Cut(text, ":")
	major, err := strconv.ParseUint(high, base, 32)
	minor, minorErr := strconv.ParseUint(low, base, 32)
	if err != nil || minorErr != nil {
		return 0
	}
	return unix.Mkdev(uint32(major), uint32(minor))
}

// info is the mount as a table would have it.
func (i Identity) info() *mountinfo.Info {
	device := deviceNumber(i.Device, 10)
	return &mountinfo.Info{
		Major: int(unix.Major(device)), Minor: int(unix.Minor(device)), FSType: i.FSType, Source: i.Source, Root: i.Root,
	}
}

// stat looks at a file without asking its file system (statx(2), AT_STATX_DONT_SYNC).
func stat(path string, mask int) (st unix.Statx_t, err error) {
	err = unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, mask, &st)
	return st, err
}

// Shows reports whether m shows what original shows, or a part of it, in whatever namespace the two are.
func Shows(m, original *mountinfo.Info) bool {
	return Device(m) == Device(original) && Within(m.Root, original.Root)
}

// showed is Shows of an original that is not mounted any more. The kernel gives the number of a file system without a
// block device again when that is gone, so the names must be the same too.
func showed(m, original *mountinfo.Info) bool {
	return Shows(m, original) && (m.Major != 0 || baseType(m) == baseType(original) &&
		(m.Source == "" || m.Source == original.Source)) // see kernelTable.mount
}

// baseType is the type without its subtype: fuse of fuse.sshfs.
func baseType(m *mountinfo.Info) string {
	base, _, _ := strings.Cut(m.FSType, ".")
	return base
}

// Device is the device number of the mounted file system.
func Device(m *mountinfo.Info) uint64 { return unix.Mkdev(uint32(m.Major), uint32(m.Minor)) }

// Within reports whether path is dir or lies below it. Both must be clean.
func Within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// ReadOnly reports whether the mount, or its file system, is read-only.
func ReadOnly(m *mountinfo.Info) bool {
	return slices.Contains(strings.Split(m.Options+","+m.VFSOptions, ","), "ro")
}

// place is a directory of a file system on which something can be mounted, whatever its path in a namespace.
type place struct {
	device uint64
	dir    string
}

// points are the visible mounts of a table by their mount points.
func points(table []*mountinfo.Info) map[string]*mountinfo.Info {
	all := make(map[string]*mountinfo.Info, len(table))
	for _, m := range table {
		all[m.Mountpoint] = m
	}
	return all
}

// placeOf is the place of a path, where a namespace has mounts; the zero place: nothing that it shows has the path.
func placeOf(points map[string]*mountinfo.Info, path string) place {
	for dir := path; dir != "/"; {
		dir = filepath.Dir(dir)
		if m := points[dir]; m != nil {
			return on(m, path)
		}
	}
	return place{}
}

// lies is the place of a mount of a table.
func lies(table []*mountinfo.Info, m *mountinfo.Info) place {
	return on(parent(table, m), m.Mountpoint)
}

func on(under *mountinfo.Info, path string) place {
	if under == nil {
		return place{}
	}
	return place{Device(under), filepath.Join(under.Root, strings.TrimPrefix(path, under.Mountpoint))}
}

// within reports whether a place is another one or lies below it.
func (p place) within(dir place) bool {
	return p.device == dir.device && p.dir != "" && Within(p.dir, dir.dir)
}

func parent(table []*mountinfo.Info, m *mountinfo.Info) *mountinfo.Info {
	for _, p := range table {
		if p.ID == m.Parent && p != m {
			return p
		}
	}
	return nil
}
