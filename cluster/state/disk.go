package state

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/internal/diskspace"
)

// The ledger's directory has:
//
//	db-N      Badger's files; N grows with each restore
//	current   the N in use; without it 0
//	open      the layout, and the boot id of the kernel under which the ledger was opened,
//	          or that it was closed
//	key-check a checksum of the key with which the ledger is encrypted;
//	          without it the ledger is plain
//	lock      locked (flock) by the process that has it open
//	ballast-* space and inodes that are freed for closing
//
// Badger does not sync its writes. They survive the end of the process, since
// they are in the kernel's pages, but not that of the kernel; and then not
// even a prefix of them is sure to be there, because the memtables' files reach
// the disk in any order. So a ledger that another boot left open is not trusted,
// nor is one of another layout.

const (
	currentFile = "current"
	openFile    = "open"
	lockFile    = "lock"
	ballastFile = "ballast-%d"
)

// layout is the version of what is in Badger's files: the keys, the index keys and the records. Raft has all of it, so
// a ledger of another layout is not upgraded but rebuilt, also when an older program is put back.
const layout = "1"

// closedMark is in openFile in place of the boot id.
const closedMark = layout + " closed"

// ballastSize is more than what closing writes: both memtables and a table's index, in bytes.
const ballastSize = 16 << 20

// ballastFiles is the number of files of ballast. The first one has all the space: more than closing makes.
const ballastFiles = 8

// bootIDPath is replaced by tests.
var bootIDPath = "/proc/sys/kernel/random/boot_id"

// lockDir keeps other processes out until the file is closed.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = fmt.Errorf("lock %s: %w (another process has the ledger open)", f.Name(), err)
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// takeBallast reserves disk space. On a full disk Badger would not fail while it writes its memtables, but die of
// SIGBUS, since it writes through maps of sparse files. Nothing is reserved on a filesystem that cannot allocate,
// or that is full.
func takeBallast(dir string) error {
	for i := range int64(ballastFiles) {
		path := filepath.Join(dir, fmt.Sprintf(ballastFile, i))
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|syscall.O_CLOEXEC, 0o600)
		if diskspace.IsFull(err) {
			return nil
		}
		if err == nil && i == 0 {
			err = syscall.Fallocate(int(f.Fd()), 0, 0, ballastSize)
			if errors.Is(err, syscall.EOPNOTSUPP) || diskspace.IsFull(err) {
				err = nil
			}
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func dropBallast(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "ballast*"))
	for _, path := range files {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// markOpen records on disk that the ledger is in use, before anything is written, and discards a ledger of another
// layout or that a crash of the machine may have damaged (lost).
func markOpen(dir string) (lost bool, err error) {
	data, err := os.ReadFile(bootIDPath)
	if err != nil {
		return false, fmt.Errorf("read the boot id: %w", err)
	}
	boot := layout + " " + strings.TrimSpace(string(data))
	mark, err := os.ReadFile(filepath.Join(dir, openFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if string(mark) == boot {
		return false, nil
	}
	if string(mark) != closedMark {
		lost = err == nil // else it is a new one
		if err := forget(dir); err != nil {
			return lost, err
		}
	}
	return lost, atomicfile.WriteFile(filepath.Join(dir, openFile), []byte(boot))
}

// forget deletes all generations.
func forget(dir string) error {
	if err := removeGenerations(dir, -1); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, currentFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func markClosed(dir string) error {
	return atomicfile.WriteFile(filepath.Join(dir, openFile), []byte(closedMark))
}

func generationName(number int) string { return fmt.Sprintf("db-%d", number) }

// currentGeneration reads which generation is in use, and deletes the others, which a restore left that did not
// finish.
func currentGeneration(dir string) (int, error) {
	data, err := os.ReadFile(filepath.Join(dir, currentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, removeGenerations(dir, 0)
	}
	if err != nil {
		return 0, err
	}
	number, err := strconv.Atoi(string(data))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", currentFile, err)
	}
	return number, removeGenerations(dir, number)
}

func removeGenerations(dir string, keep int) error {
	found, err := filepath.Glob(filepath.Join(dir, "db-*"))
	if err != nil {
		return err
	}
	for _, path := range found {
		if filepath.Base(path) == generationName(keep) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// ErrWrongKey means that the ledger is encrypted with another key than the one given.
var ErrWrongKey = errors.New("the ledger is encrypted with another key")

// Option changes how a store is opened.
type Option func(*Store)

// WithKey encrypts the ledger on disk with a key of 16, 24 or 32 bytes; empty: it is plain.
func WithKey(key []byte) Option { return func(s *Store) { s.key = key } }

// keyFile has a checksum by which a key is recognized, and from which it cannot be derived.
const keyFile = "key-check"

// settleKey compares the key with the one that the ledger is encrypted with. A plain ledger is discarded (lost)
// when a key is given.
func settleKey(dir string, key []byte) (lost bool, err error) {
	mark, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	encrypted := err == nil
	if len(key) == 0 {
		if encrypted {
			return false, fmt.Errorf("%w: none is given (to continue without encryption, "+
				"remove %s while the host is down: the raft log fills it again)", ErrWrongKey, dir)
		}
		return false, nil
	}
	switch len(key) {
	case 16, 24, 32:
	default:
		return false, fmt.Errorf("a key of %d bytes: it must have 16, 24 or 32", len(key))
	}
	sum := hmac.New(sha256.New, key)
	sum.Write([]byte("pannier ledger"))
	want := hex.EncodeToString(sum.Sum(nil))
	switch {
	case encrypted && !hmac.Equal(mark, []byte(want)):
		return false, fmt.Errorf("%w (to continue with the given key, "+
			"remove %s while the host is down: the raft log fills it again)", ErrWrongKey, dir)
	case encrypted:
		return false, nil
	}
	found, err := filepath.Glob(filepath.Join(dir, "db-*"))
	if err != nil {
		return false, err
	}
	if err := forget(dir); err != nil {
		return false, err
	}
	return len(found) > 0, atomicfile.WriteFile(filepath.Join(dir, keyFile), []byte(want))
}
