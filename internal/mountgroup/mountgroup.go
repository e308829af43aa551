// Package mountgroup gives the files of a mounted volume to a group.
package mountgroup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Set makes gid the group of all that is in the file system at mountpoint, with read and write permission, search
// permission for directories, and setgid for them, so that new files belong to the group too. As with Kubernetes'
// OnRootMismatch nothing is done where the root has all that already: it comes last, so an interrupted Set is repeated.
// Symbolic links are given to the group, and not followed out of the volume.
func Set(ctx context.Context, mountpoint string, gid int) error {
	root, err := os.OpenRoot(mountpoint)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if info.Sys().(*syscall.Stat_t).Gid == uint32(gid) && mode(info) == info.Mode() {
		return nil
	}
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			err = give(root, name, info, gid)
		}
		return err
	})
	if err == nil {
		err = give(root, ".", info, gid)
	}
	if err != nil {
		return fmt.Errorf("give %s to group %d: %w", mountpoint, gid, err)
	}
	return nil
}

// give gives one file to the group. chown clears the setgid bit, so chmod comes second.
func give(root *os.Root, name string, info fs.FileInfo, gid int) error {
	err := root.Lchown(name, -1, gid)
	if err == nil && (info.Mode().IsRegular() || info.IsDir()) {
		err = root.Chmod(name, mode(info))
	}
	return err
}

// mode is what a file's mode is to be.
func mode(info fs.FileInfo) fs.FileMode {
	switch m := info.Mode(); {
	case m.IsDir():
		return m | fs.ModeSetgid | 0o070
	case m&0o100 != 0:
		return m | 0o070
	default:
		return m | 0o060
	}
}
