// Package diskspace reports whether a disk has room: bytes, and inodes for new files.
package diskspace

import (
	"errors"
	"fmt"
	"syscall"
)

// IsFull reports whether an error comes from a disk or a quota without room for more.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Lack describes what a directory's file system lacks of bytes and of inodes, for an unprivileged user; empty: nothing.
// A file system without a limit of inodes always has some.
func Lack(dir string, bytes, inodes uint64) (string, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("read the free space of %s: statfs: %w", dir, err)
	}
	switch free := s.Bavail * uint64(s.Bsize); {
	case free < bytes:
		return fmt.Sprintf("%s has %d MiB left, and this needs %d MiB", dir, free>>20, bytes>>20), nil
	case s.Files > 0 && s.Ffree < inodes:
		return fmt.Sprintf("%s has %d of %d inodes left, and this needs %d: remove files", dir, s.Ffree, s.Files, inodes), nil
	}
	return "", nil
}
