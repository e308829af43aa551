// Package store keeps volumes and snapshots in one data directory, and is the only package that knows its layout:
//
//	lock                        flock: one driver per data directory
//	volumes/<id>/record.json    a volume's metadata
//	volumes/<id>/<id>.img       its data; the file's size is its capacity
//	snapshots/<id>/...          the same for a snapshot
//	groups/<id>                 which snapshots were taken together, and whether all of them are there
//	frozen/<id>                 the volume's file system was about to be frozen
//	tmp/...                     everything that is unfinished
//
// Invariant: an id exists exactly if its directory does. A directory is built below tmp, synced and renamed into
// place; to delete it, it is first renamed back to tmp. So a crash leaves either all of it or something below tmp,
// which Open removes. A group's file says that it is incomplete before its first snapshot comes and before its last one
// goes; Open removes such groups with their snapshots. Nothing is kept in memory.
package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/trusted"
)

var (
	// ErrNotFound means that no volume or snapshot has this id.
	ErrNotFound = errors.New("not found")
	// ErrLocked means that another driver uses the data directory.
	ErrLocked = errors.New("the data directory is in use by another driver")
)

// lockWait is how long Open waits for an earlier driver's lock: programs that a killed driver had started keep it
// until they have ended.
const lockWait = 3 * time.Second

// Store is an open data directory. It is safe for concurrent use, except that the caller must not make two changes
// of one id at once.
type Store struct {
	dir       string
	lock      *os.File
	volumes   shelf[Volume]
	snapshots shelf[Snapshot]
}

// Open makes dir if necessary, locks it, and removes what an earlier driver left unfinished. It fails with
// ErrLocked if another driver holds the lock, and if other users can write in the directory or replace it.
func Open(ctx context.Context, dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	for _, sub := range []string{"volumes", "snapshots", "groups", "frozen", "tmp"} {
		sub = filepath.Join(dir, sub)
		if err = trusted.MkdirAll(sub, 0o700); err == nil {
			err = trusted.Dir(sub)
		}
		if err != nil {
			return nil, fmt.Errorf("open data directory: %w", err)
		}
	}
	// Without symbolic links, as the kernel lists it in the mount table and for loop devices.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	s := &Store{dir: dir}
	tmp := filepath.Join(dir, "tmp")
	s.volumes = shelf[Volume]{what: "volume", dir: filepath.Join(dir, "volumes"), tmp: tmp, prefix: volumePrefix}
	s.snapshots = shelf[Snapshot]{what: "snapshot", dir: filepath.Join(dir, "snapshots"), tmp: tmp, prefix: snapshotPrefix}
	if s.lock, err = lockFile(ctx, filepath.Join(dir, "lock")); err != nil {
		return nil, fmt.Errorf("open data directory %s: %w", dir, err)
	}
	if err := errors.Join(sweep(tmp), s.sweepGroups()); err != nil {
		return nil, errors.Join(fmt.Errorf("sweep data directory: %w", err), s.Close())
	}
	return s, nil
}

// Close releases the lock. It may be repeated.
func (s *Store) Close() error {
	if err := s.lock.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Lock returns the open lock file. Programs that change volumes inherit it, so that the lock is held until they
// end, even if the driver is killed first.
func (s *Store) Lock() *os.File { return s.lock }

// Dir returns the absolute path of the data directory, without symbolic links.
func (s *Store) Dir() string { return s.dir }

// Probe writes, syncs and removes a small file in the data directory.
func (s *Store) Probe() error {
	f, err := os.CreateTemp(filepath.Join(s.dir, "tmp"), "probe-")
	if err != nil {
		return fmt.Errorf("probe data directory: %w", err)
	}
	_, err = f.WriteString("probe\n")
	err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
	if err != nil {
		return fmt.Errorf("probe data directory: %w", err)
	}
	return nil
}

// Scratch makes an empty directory that the next Open sweeps.
func (s *Store) Scratch() (string, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.dir, "tmp"), "scratch-")
	if err != nil {
		return "", fmt.Errorf("make a scratch directory: %w", err)
	}
	return dir, nil
}

// Space returns the size of the data directory's disk and the bytes that an unprivileged writer may still use.
func (s *Store) Space() (total, available int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", s.dir, err)
	}
	return int64(st.Blocks) * st.Frsize, int64(st.Bavail) * st.Frsize, nil
}

// MarkFrozen records that the volume's file system is about to be frozen. The marker survives the process, so that
// the next one can thaw. It is not synced, because a freeze does not survive a reboot.
func (s *Store) MarkFrozen(id string) error {
	f, err := os.OpenFile(filepath.Join(s.dir, "frozen", id), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("note the freeze of volume %q: %w", id, err)
	}
	return f.Close()
}

// ClearFrozen reverses MarkFrozen.
func (s *Store) ClearFrozen(id string) error {
	err := os.Remove(filepath.Join(s.dir, "frozen", id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("clear the note about the freeze of volume %q: %w", id, err)
	}
	return nil
}

// Frozen lists the volumes with a marker of MarkFrozen.
func (s *Store) Frozen() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "frozen"))
	if err != nil {
		return nil, fmt.Errorf("list frozen volumes: %w", err)
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, nil
}

// lockFile takes an exclusive flock on path and waits up to lockWait for it.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, ErrLocked)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		case <-tick.C:
		}
	}
}

// sweep removes everything below dir.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
