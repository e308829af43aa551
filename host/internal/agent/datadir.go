package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/internal/trusted"
)

const (
	// recentEvents is how many past events can be read.
	recentEvents = 1000
	// lockWait is how long to wait for the lock: a child of a killed agent may hold it until its exec.
	lockWait  = 2 * time.Second
	lockEvery = 10 * time.Millisecond
)

func (a *agent) openDataDir(ctx context.Context) error {
	a.events = events.New(recentEvents)
	// Its contents have modes of their own. Plugins that run as another user must be able to pass through.
	if err := trusted.MkdirAll(a.cfg.DataDir, 0o711); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	// The kernel's mount table has paths without links.
	dir, err := filepath.EvalSymlinks(a.cfg.DataDir)
	if err != nil {
		return err
	}
	a.cfg.DataDir = dir
	if err := trusted.Dir(dir); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err == nil && fs.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("data_dir %s is on a mount with the option noexec, and plugins and drivers run from their copies "+
			"in it: mount it with exec, or set another data_dir", dir)
	}
	lock := a.sockets.Inherited(config.LockFile)
	if lock == nil {
		if lock, err = lockDir(ctx, dir); err != nil {
			return err
		}
	}
	a.closers.add(lock.Close)
	if err := a.sockets.Lock(config.LockFile, lock); err != nil {
		return err
	}
	kept := filepath.Join(dir, "events.jsonl")
	if err := a.events.Restore(kept); err != nil {
		return err
	}
	a.closers.loop(ctx, func(ctx context.Context) {
		a.events.Keep(ctx, kept, func(err error) { a.log.Warn("events", "error", err) })
	})
	return nil
}

// lockDir locks the data directory against other agents until the file is closed or this process ends.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	path := filepath.Join(dir, config.LockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, f); err != nil {
		other, _ := os.ReadFile(path)
		err = fmt.Errorf("another agent (pid %s) runs on data_dir %s: stop it, or give this one a data_dir of its own: %w",
			strings.TrimSpace(string(other)), dir, err)
		return nil, errors.Join(err, f.Close())
	}
	if err := awaitDatabases(ctx, dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, writePID(f)
}

// flock locks a file, which an ending process may have locked, within ctx.
func flock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || ctx.Err() != nil {
			return err
		}
		time.Sleep(lockEvery)
	}
}

// awaitDatabases waits until no process has the databases in the data directory open. A process that ends gives up one
// lock after the other, so the agent's may be free before those of the databases are.
func awaitDatabases(ctx context.Context, dir string) error {
	generations, err := filepath.Glob(filepath.Join(dir, "ledger", "db-*"))
	if err != nil {
		return err
	}
	for _, path := range append(generations, filepath.Join(dir, "ledger", "lock"), filepath.Join(dir, "journal")) {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was never opened
		}
		if err != nil {
			return err
		}
		err = flock(ctx, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("wait for the end of the process that has %s open: %w", path, err)
		}
	}
	return nil
}

// writePID records the lock's holder for the error of another agent.
func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	return err
}
