package fence

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/procfs"
)

// unmounts are those under way: the kernel may take as long as a disk does.
type unmounts struct {
	mu    sync.Mutex
	under map[string]*unmount
}

type unmount struct {
	done chan struct{} // closed when err is set
	err  error
}

// begin calls the kernel on its own, unless that is under way for the same mount.
func (u *unmounts) begin(key string, call func() error) *unmount {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.under[key]; now != nil {
		return now
	}
	now := &unmount{done: make(chan struct{})}
	u.under[key] = now
	go func() {
		now.err = call()
		u.mu.Lock()
		delete(u.under, key)
		u.mu.Unlock()
		close(now.done)
	}()
	return now
}

// unmountIn unmounts what the process sees at path, in its mount namespace.
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

// unmountBelow is to be called on a thread that ends after it.
func unmountBelow(namespace, root int, path string, flags int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns(2) wants a root of the thread's own
		return fmt.Errorf("take a root of its own: %w", err)
	}
	if err := unix.Setns(namespace, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the namespace: %w", err)
	}
	if err := errors.Join(unix.Fchdir(root), unix.Chroot(".")); err != nil {
		return fmt.Errorf("go to the process's root: %w", err)
	}
	return unix.Unmount(path, flags)
}
