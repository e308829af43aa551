package mountuse

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/procfs"
)

// UnmountIn unmounts what is mounted at a path of a tree (umount2(2)). pid is a process that sees the tree; 0: none
// does.
func UnmountIn(t Tree, pid int, path string, flags int) error {
	if pid == 0 {
		return eachNamespace(func(fd int, inode, _ uint64) error {
			if inode != t.Namespace {
				return nil
			}
			return onThread(func() error { return unmountBelow(fd, -1, path, flags) })
		})
	}
	namespace, err := unix.Open(procfs.Dir(pid)+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(namespace)
	if t.Root == "/" {
		return onThread(func() error { return unmountBelow(namespace, -1, path, flags) })
	}
	root, err := unix.Open(procfs.Dir(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	return onThread(func() error { return unmountBelow(namespace, root, path, flags) })
}

func onThread(do func() error) error {
	answer := make(chan error, 1)
	var thread sync.WaitGroup
	thread.Go(func() { process.OnOwnThread(func() { answer <- do() }) })
	thread.Wait()
	return <-answer
}

// unmountBelow must be called on a thread that ends after it. root is the directory that path begins at; -1: the
// namespace's.
func unmountBelow(namespace, root int, path string, flags int) error {
	// setns(2) requires that the thread does not share its root directory
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the thread's root directory: %w", err)
	}
	if err := unix.Setns(namespace, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace: %w", err)
	}
	if root >= 0 {
		if err := errors.Join(unix.Fchdir(root), unix.Chroot(".")); err != nil {
			return fmt.Errorf("change to the process's root directory: %w", err)
		}
	}
	return unix.Unmount(path, flags)
}
