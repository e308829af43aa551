package fence

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/procfs"
)

// unmounts are the unmounts in progress. One may take as long as the disk needs.
type unmounts struct {
	mu    sync.Mutex
	byKey map[string]*unmount
}

type unmount struct {
	done chan struct{} // closed when err is set
	err  error
}

// begin runs call in the background, unless one for the same key is in progress.
func (u *unmounts) begin(key string, call func() error) *unmount {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.byKey[key]; now != nil {
		return now
	}
	now := &unmount{done: make(chan struct{})}
	u.byKey[key] = now
	go func() {
		now.err = call()
		u.mu.Lock()
		delete(u.byKey, key)
		u.mu.Unlock()
		close(now.done)
	}()
	return now
}

// unmountIn unmounts what the process sees at path in its mount namespace.
func unmountIn(pid int, path string, flags int) error {
	name := procfs.Dir(pid)
	namespace, err := unix.Open(name+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(namespace)
	root, err := unix.Open(name+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	answer := make(chan error, 1)
	var thread sync.WaitGroup
	thread.Go(func() { process.OnOwnThread(func() { answer <- unmountBelow(namespace, root, path, flags) }) })
	thread.Wait()
	return <-answer
}

// unmountBelow must be called on a thread that ends after it.
func unmountBelow(namespace, root int, path string, flags int) error {
	// setns(2) requires that the thread does not share its root directory
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the thread's root directory: %w", err)
	}
	if err := unix.Setns(namespace, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace: %w", err)
	}
	if err := errors.Join(unix.Fchdir(root), unix.Chroot(".")); err != nil {
		return fmt.Errorf("change to the process's root directory: %w", err)
	}
	return unix.Unmount(path, flags)
}

// detachLoop detaches a loop device from its file, or lets the kernel do so when nothing uses it any more (loop(4)).
func detachLoop(name string) error {
	fd, err := unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
}
