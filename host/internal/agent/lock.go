package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockWait is how long the lock of an agent that was killed may still be held by a
// child of it that had not got to its exec.
const (
	lockWait  = 2 * time.Second
	lockEvery = 10 * time.Millisecond
)

// lockDir keeps other agents off a data directory until the file is closed, or
// this process ends.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	path := filepath.Join(dir, "agent.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, note(f)
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || ctx.Err() != nil {
			other, _ := os.ReadFile(path)
			err = fmt.Errorf("another agent (pid %s) runs on data_dir %s: stop it, or give this one a data_dir of its own: %w",
				strings.TrimSpace(string(other)), dir, err)
			return nil, errors.Join(err, f.Close())
		}
		time.Sleep(lockEvery)
	}
}

// note writes the holder's pid into the lock, for the error of the next one.
func note(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	return err
}
