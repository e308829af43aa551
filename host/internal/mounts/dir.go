package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// Remove may take a parent away that is empty for a moment: make it again. The
	// bound is for a path that can never be made.
	for range 100 {
		if err = noLink(root, rel); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err = root.MkdirAll(rel, 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
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
		return fmt.Errorf("%s is %s, not the driver's", path, kind(info.Mode()))
	}
	return nil
}

// noLink makes sure that rel and all above it are real directories.
func noLink(root *os.Root, rel string) error {
	for end := range len(rel) + 1 {
		if end < len(rel) && rel[end] != filepath.Separator {
			continue
		}
		info, err := root.Lstat(rel[:end])
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is %s, not a directory", rel[:end], kind(info.Mode()))
		}
	}
	return nil
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a file"
	case m&fs.ModeSymlink != 0:
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
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := noLink(root, filepath.Dir(rel)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for p := rel; p != stagingDir && p != workloadDir; p = filepath.Dir(p) {
		if info, err := root.Lstat(p); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			return fmt.Errorf("%s: %w (%d bytes)", path, ErrHoldsData, info.Size())
		}
		err := root.Remove(p)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case !errors.Is(err, fs.ErrExist): // which ENOTEMPTY is, too
			return err
		case p == rel:
			return fmt.Errorf("%s: %w", path, ErrHoldsData)
		default:
			return nil
		}
	}
	return nil
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
