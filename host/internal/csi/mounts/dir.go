package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
)

// ErrOutside is returned for a path that does not lie in, or leads out of, the folders where drivers
// may mount.
var ErrOutside = errors.New("the path is outside the drivers' folders")

// ErrHoldsData is returned for a directory or file that is not empty.
var ErrHoldsData = errors.New("it is not empty")

// Make makes the directory and its parents, 0700. A link on the way below the driver's folder is an
// error, wherever it leads.
func (l Layout) Make(path string) error {
	dir, rel, err := l.split(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// Remove may delete a parent that is empty for a moment: make it again. The bound
	// is for a path that can never be made.
	for range 100 {
		if err = makeBelow(dir, rel); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func makeBelow(dir, rel string) error {
	c, err := walk(dir, rel, true)
	if err != nil {
		return err
	}
	defer c.close()
	create, err := enter(c.last(), c.name(), true)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, rel), err)
	}
	return unix.Close(create)
}

// MakeParent makes the parent of a path that a driver will make. A link at the path itself is an
// error too: the driver would mount where it leads, and would not unmount there.
func (l Layout) MakeParent(path string) error {
	if err := l.Make(filepath.Dir(path)); err != nil {
		return err
	}
	c, err := l.open(path)
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := unix.Readlinkat(c.last(), c.name(), make([]byte, 1)); err == nil { // only a link has a text
		return fmt.Errorf("%s is a link, not the driver's", path)
	}
	return nil
}

// kind names the type of a file that is not a directory (inode(7)).
func kind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a file"
	case unix.S_IFLNK:
		return "a link"
	default:
		return "a special file"
	}
}

// Remove removes the directory at path, or the file that stood for a block device, if it is empty,
// and then its empty parents. Anything that is not empty stays; if that is path itself the error is
// ErrHoldsData.
func (l Layout) Remove(path string) error {
	c, err := l.openExisting(path)
	if c == nil {
		return err
	}
	defer c.close()
	whole := c.whole()
	for ; len(c.dirs) > 1; c.up() { // the first is staging or per-workload, and stays
		err := removeEmpty(c.last(), c.name())
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case !errors.Is(err, ErrHoldsData):
			return &fs.PathError{Op: "remove", Path: filepath.Join(c.dir, filepath.Join(c.names...)), Err: err}
		case whole:
			return fmt.Errorf("%s: %w", path, err)
		default:
			return nil
		}
		whole = false // parents that are not empty belong to others
	}
	return nil
}

// removeEmpty removes an empty directory, or an empty file, or a link.
func removeEmpty(in int, name string) error {
	err := unix.Unlinkat(in, name, unix.AT_REMOVEDIR)
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return ErrHoldsData
	case !errors.Is(err, unix.ENOTDIR):
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0 {
		return fmt.Errorf("%w (%d bytes)", ErrHoldsData, st.Size)
	}
	return unix.Unlinkat(in, name, 0)
}

// unmounts are the unmounts in progress, by path. One may take as long as its file system needs.
var unmounts bounded.Calls

// Mounted returns what is mounted of a volume at a path, in the order of mounting: at the path itself and, if it is a
// staging path, below it, where a driver may have a directory of its own (ceph-csi has).
func (l Layout) Mounted(path string) (found []Mount, err error) {
	there, err := Read()
	_, rel, _ := l.split(path)
	staging := strings.HasPrefix(rel, stagingDir+string(filepath.Separator))
	return slices.DeleteFunc(there.Below(path), func(m Mount) bool { return m.Path != path && !staging }), err
}

// Unmount unmounts everything that is Mounted. It is for mounts that a driver said it had unmounted, or
// forgot. A busy mount is an error, never detached lazily, and so is an unmount that has not ended.
func (l Layout) Unmount(path string) error {
	if _, _, err := l.split(path); err != nil {
		return err
	}
	err := unmounts.Do(path, bounded.Patience, func() error {
		for {
			there, err := l.Mounted(path)
			if err != nil || len(there) == 0 {
				return err
			}
			last := there[len(there)-1]
			dir, rel, err := l.split(last.Path)
			if err == nil {
				err = unmountBelow(dir, rel, 0)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", last, err)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// Abort makes all calls to the file system at path fail that wait for its server, and unmounts it unless it is busy
// (umount2(2), MNT_FORCE). Data that was not written yet is lost.
func (l Layout) Abort(path string) error {
	dir, rel, err := l.split(path)
	if err != nil {
		return err
	}
	err = unmounts.Do("abort "+path, bounded.Patience, func() error { return unmountBelow(dir, rel, unix.MNT_FORCE) })
	if err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s by force: %w", path, err)
	}
	return nil
}

func unmountBelow(dir, rel string, flags int) error {
	c, err := walk(dir, rel, false)
	if err != nil {
		return err
	}
	defer c.close()
	if !c.whole() {
		return fs.ErrNotExist
	}
	return unix.Unmount(c.path(), unix.UMOUNT_NOFOLLOW|flags)
}

// Restrict sets flags of the mount at path, MOUNT_ATTR_* of mount_setattr(2), and leaves the others as they are.
func (l Layout) Restrict(path string, attributes uint64) error {
	c, err := l.open(path)
	if err != nil {
		return err
	}
	defer c.close()
	if !c.whole() {
		return &fs.PathError{Op: "set the flags of the mount at", Path: path, Err: fs.ErrNotExist}
	}
	attr := unix.MountAttr{Attr_set: attributes}
	if err := unix.MountSetattr(c.last(), c.name(), unix.AT_SYMLINK_NOFOLLOW, &attr); err != nil {
		return &fs.PathError{Op: "set the flags of the mount at", Path: path, Err: err}
	}
	return nil
}

// Device returns the number of the block device at path, through links, as sysfs has it; empty: it is none. It opens
// no device and asks no file system.
func Device(path string) (number string, err error) {
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", nil
	}
	if err != nil {
		return "", &fs.PathError{Op: "look at", Path: path, Err: err}
	}
	return fmt.Sprintf("%d:%d", st.Rdev_major, st.Rdev_minor), nil
}

// ReadOnlyDevice reports whether the kernel refuses writes to a block device. A read-only mount of a device file
// refuses none.
func ReadOnlyDevice(number string) (bool, error) {
	text, err := os.ReadFile("/sys/dev/block/" + number + "/ro")
	return strings.TrimSpace(string(text)) == "1", err
}

// chain is the path from a driver's folder to a path below it, with each directory opened in the one
// above it: no link can lead out of it, whatever changes meanwhile.
type chain struct {
	dir    string   // the driver's folder
	names  []string // of what lies below it
	dirs   []int    // dirs[i] holds names[i]
	wanted int      // how many names the path has
}

// walk opens the directories from dir to the parent of rel. If one is missing, create makes it
// (0700); without create the chain ends there, shorter than rel. Anything that is not a directory is
// an error.
func walk(dir, rel string, create bool) (*chain, error) {
	top, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	names := strings.Split(rel, string(filepath.Separator))
	c := &chain{dir: dir, names: names, dirs: []int{top}, wanted: len(names)}
	for i, name := range c.names[:len(c.names)-1] {
		next, err := enter(top, name, create)
		if errors.Is(err, unix.ENOENT) && !create {
			c.names = c.names[:i+1]
			return c, nil
		}
		if err != nil {
			c.close()
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, filepath.Join(c.names[:i+1]...)), err)
		}
		top = next
		c.dirs = append(c.dirs, top)
	}
	return c, nil
}

// open is walk without create, to a path where drivers may mount.
func (l Layout) open(path string) (*chain, error) {
	dir, rel, err := l.split(path)
	if err != nil {
		return nil, err
	}
	return walk(dir, rel, false)
}

// openExisting is open that returns nil, nil if the driver's folder does not exist.
func (l Layout) openExisting(path string) (*chain, error) {
	c, err := l.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return c, err
}

// enter opens the directory name in another one, and makes it first if create is set.
func enter(in int, name string, create bool) (int, error) {
	if create {
		if err := unix.Mkdirat(in, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, err
		}
	}
	fd, err := unix.Openat(in, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		var st unix.Stat_t
		if unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return 0, fmt.Errorf("it is %s, not a directory", kind(st.Mode))
		}
	}
	return fd, err
}

// last holds name, which is the end of the chain.
func (c *chain) last() int    { return c.dirs[len(c.dirs)-1] }
func (c *chain) name() string { return c.names[len(c.names)-1] }

// path names the end of the chain for calls that take no descriptor; only its last element can be a link.
func (c *chain) path() string { return fmt.Sprintf("/proc/self/fd/%d/%s", c.last(), c.name()) }

// up closes the last directory and removes it from the chain.
func (c *chain) up() {
	_ = unix.Close(c.last()) // nothing was written through it
	c.dirs, c.names = c.dirs[:len(c.dirs)-1], c.names[:len(c.names)-1]
}

func (c *chain) close() {
	for _, fd := range c.dirs {
		_ = unix.Close(fd) // nothing was written through it
	}
}
