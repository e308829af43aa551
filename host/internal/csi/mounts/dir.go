package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrOutside is returned for a path that does not lie, or leads out of, where
// drivers may mount.
var ErrOutside = errors.New("the path is outside the drivers' folders")

// ErrHoldsData is returned by Remove for what is not empty.
var ErrHoldsData = errors.New("it is not empty and is left alone")

// Make makes the directory and its parents, 0700. A link on the way below the
// driver's folder is an error, wherever it leads.
func (l Layout) Make(path string) error {
	dir, rel, err := l.split(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// Remove may take a parent away that is empty for a moment: make it again. The
	// bound is for a path that can never be made.
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
	made, err := enter(c.last(), c.name(), true)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, rel), err)
	}
	return unix.Close(made)
}

// MakeParent makes the parent of a path that a driver is to make. A link at the
// path itself is an error too: the driver would mount where it leads, and take
// nothing away there.
func (l Layout) MakeParent(path string) error {
	if err := l.Make(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a link, not the driver's", path)
	}
	return nil
}

// kind tells what is there instead of a directory (inode(7)).
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

// Remove removes the directory at path, or the file that stood for a block
// device, where it is empty, and the parents that are empty then. What holds
// anything stays, with ErrHoldsData where that is path itself.
func (l Layout) Remove(path string) error {
	dir, rel, err := l.split(path)
	if err != nil {
		return err
	}
	c, err := walk(dir, rel, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.close()
	whole := len(c.names) == len(strings.Split(rel, string(filepath.Separator)))
	for ; len(c.dirs) > 1; c.up() { // the first is staging or per-workload, and stays
		err := removeEmpty(c.last(), c.name())
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case !errors.Is(err, ErrHoldsData):
			return &fs.PathError{Op: "remove", Path: filepath.Join(dir, filepath.Join(c.names...)), Err: err}
		case whole:
			return fmt.Errorf("%s: %w", path, err)
		default:
			return nil
		}
		whole = false // from here on what holds anything is another's
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

// Unmount takes away every mount on path. It is for mounts that a driver said it
// had taken away, or forgot: a mount that is busy is an error, never detached lazily.
func (l Layout) Unmount(path string) error {
	if _, _, err := l.split(path); err != nil {
		return err
	}
	for {
		m, err := At(path)
		if err != nil || m == nil {
			return err
		}
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s (%s): %w", path, m, err)
		}
	}
}

// BlockDevice says whether path is a block device, through links.
func BlockDevice(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0, nil
}
