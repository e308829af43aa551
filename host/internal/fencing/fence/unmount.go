package fence

import (
	"sync"

	"golang.org/x/sys/unix"
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

// detachLoop detaches a loop device from its file, or lets the kernel do so when nothing uses it any more (loop(4)).
func detachLoop(name string) error {
	fd, err := unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
}
