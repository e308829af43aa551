package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrOutside is returned for a path that does not lie, or leads out of, where
// drivers may mount.
var ErrOutside = errors.New("the path is outside the drivers' folders")

// Make makes the directory and its parents below the driver's folder, 0700. A
// link in between that leads out of the folder is an error.
func (l Layout) Make(driver, path string) error {
	return l.below(driver, path, func(root *os.Root, rel string) error {
		if err := root.MkdirAll(rel, 0o700); err != nil {
			return err
		}
		return noLink(root, rel)
	})
}

// noLink makes sure that rel is a real directory: MkdirAll takes a link to one.
func noLink(root *os.Root, rel string) error {
	for p := rel; p != "."; p = filepath.Dir(p) {
		info, err := root.Lstat(p)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is %s, not a directory", p, info.Mode().Type())
		}
	}
	return nil
}

// Remove removes the directory or the file of a block device at path, where it
// is empty, and the parents that are empty then. What holds anything stays.
func (l Layout) Remove(driver, path string) error {
	return l.below(driver, path, func(root *os.Root, rel string) error {
		for p := rel; p != stagingDir && p != workloadDir && p != "."; p = filepath.Dir(p) {
			if info, err := root.Lstat(p); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
				return fmt.Errorf("%s holds %d bytes and is left alone", p, info.Size())
			}
			err := root.Remove(p)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, fs.ErrExist):
				if p == rel {
					return fmt.Errorf("%s is not empty and is left alone", p)
				}
				return nil
			case err != nil:
				return err
			}
		}
		return nil
	})
}

func (l Layout) below(driver, path string, do func(root *os.Root, rel string) error) error {
	if !l.ours(path) {
		return fmt.Errorf("%s: %w", path, ErrOutside)
	}
	dir := l.Driver(driver)
	rel, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("%s: %w", path, ErrOutside)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return do(root, rel)
}

// Unmount takes away every mount on path. It is for mounts that a driver said it
// had taken away, or forgot: a mount that is busy is an error, never detached lazily.
func (l Layout) Unmount(path string) error {
	if !l.ours(path) {
		return fmt.Errorf("%s: %w", path, ErrOutside)
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
