package process

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openLog opens the file that takes a process's output, and locks it. The lock
// belongs to the open file, which the process inherits: it stands from the fork
// until the last descendant that has the file is gone.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	// Shared: what is left of an earlier run must not keep a new one away. It
	// waits only for logLocked, which holds the other lock for an instant.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the log %s: %w", path, err)
	}
	return f, nil
}

// logLocked tells whether any process holds the lock of openLog.
func logLocked(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}
