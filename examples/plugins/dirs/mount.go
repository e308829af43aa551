package main

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bind creates target and bind-mounts the directory source there.
func bind(source, target string, readOnly bool) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return status.Errorf(codes.Internal, "make the target: %v", err)
	}
	there, err := same(source, target)
	if err != nil {
		return err
	}
	if !there {
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return status.Errorf(codes.Internal, "bind %s to %s: %v", source, target, err)
		}
	}
	if !readOnly {
		return nil
	}
	// The flags of a bind mount are set by a second call (mount(2)).
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return status.Errorf(codes.Internal, "make %s read-only: %v", target, err)
	}
	return nil
}

// unbind undoes bind. It succeeds if target does not exist.
func unbind(target string) error {
	for {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing is mounted there
		}
		if err != nil {
			return status.Errorf(codes.Internal, "unmount %s: %v", target, err)
		}
	}
	// Do not use RemoveAll: the directory may contain foreign files.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.Internal, "remove the target: %v", err)
	}
	return nil
}

// same reports whether both paths are the same directory.
func same(a, b string) (bool, error) {
	first, err := os.Stat(a)
	if err != nil {
		return false, status.Errorf(codes.Internal, "look at the volume: %v", err)
	}
	second, err := os.Stat(b)
	if err != nil {
		return false, status.Errorf(codes.Internal, "look at the target: %v", err)
	}
	return os.SameFile(first, second), nil
}
