package mounts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// asideDir is the folder, inside a driver's folder, for files that were found beneath mount points. It is on
// the same file system, so moving them is a rename.
const asideDir = "set-aside"

// CheckEmpty fails with ErrHoldsData if path is a directory with something in it, or a file that is not empty: a mount
// there would hide it. Nothing at path is no error. Nothing may be mounted at path.
func (l Layout) CheckEmpty(path string) error {
	c, err := l.openExisting(path)
	if c == nil {
		return err
	}
	defer c.close()
	if !c.whole() {
		return nil
	}
	what, err := content(c.last(), c.name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return &fs.PathError{Op: "look into", Path: path, Err: err}
	case what != "":
		return fmt.Errorf("%s: %w: %s", path, ErrHoldsData, what)
	}
	return nil
}

// content describes the content of the directory or file called name; empty: there is none.
func content(in int, name string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0:
		return fmt.Sprintf("it is a file of %d bytes", st.Size), nil
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "", nil
	}
	fd, err := unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	names, err := d.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("it has %q in it", names[0]), nil
}

// SetAside moves the file or directory at path, unless it is an empty directory, into the folder set-aside of
// the driver, below the time and under the same path. It returns the new path; empty: nothing was moved.
// Nothing is deleted or overwritten. A mount at or below path is an error; an *os.LinkError means that it
// could not be moved.
func (l Layout) SetAside(path string, now time.Time) (to string, err error) {
	err = l.CheckEmpty(path)
	if !errors.Is(err, ErrHoldsData) {
		return "", err
	}
	if there, err := Below(path); err != nil || len(there) > 0 {
		return "", errors.Join(err, fmt.Errorf("move aside what %s holds: mounts are there: %v", path, there))
	}
	dir, rel, err := l.split(path)
	if err != nil {
		return "", err
	}
	from, err := walk(dir, rel, false)
	if err != nil {
		return "", err
	}
	defer from.close()
	aside := filepath.Join(asideDir, now.UTC().Format("20060102T150405.000000000Z"), rel)
	to = filepath.Join(dir, aside)
	c, err := walk(dir, aside, true)
	if err == nil {
		defer c.close()
		err = unix.Renameat2(from.last(), from.name(), c.last(), c.name(), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return "", &os.LinkError{Op: "move aside", Old: path, New: to, Err: err}
	}
	return to, nil
}

// whole reports that the chain goes all the way to the path's parent.
func (c *chain) whole() bool { return len(c.names) == c.wanted }
