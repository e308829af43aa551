package secrets

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pannier/pannier/host/internal/durable"
)

// keySize is that of an AES-256 key in bytes.
const keySize = 32

// readOrMakeKey reads the key in path, and makes one first where there is none.
func readOrMakeKey(path string) ([]byte, error) {
	key, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := makeKey(path); err != nil {
		return nil, fmt.Errorf("make the secrets key %s: %w", path, err)
	}
	return readKey(path)
}

// readKey refuses a key that someone else may have read or replaced.
func readKey(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("the secrets key %s is a symbolic link: put the key file itself there", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the secrets key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the secrets key: %w", err)
	}
	if err := checkKeyFile(path, info); err != nil {
		return nil, err
	}
	key := make([]byte, keySize)
	if _, err := io.ReadFull(f, key); err != nil {
		return nil, fmt.Errorf("read the secrets key %s: %w", path, err)
	}
	return key, nil
}

func checkKeyFile(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("the secrets key %s is not a regular file (%s): restore it from a backup", path, info.Mode().Type())
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return fmt.Errorf("the secrets key %s is open to others (mode %04o): make sure that nobody has read it, then chmod 0600 %s", path, perm, path)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("the secrets key %s belongs to uid %d: make sure that nobody has read it, then chown %d %s", path, owner, os.Geteuid(), path)
	}
	if info.Size() != keySize {
		return fmt.Errorf("the secrets key %s has %d bytes, want %d: restore it from a backup, or, "+
			"if no registered volume has secrets, remove it and a new one is made", path, info.Size(), keySize)
	}
	return nil
}

// makeKey writes a random key so that path has either a whole key or none after
// a crash. The link, unlike a rename, never replaces a key that another process
// made meanwhile: that one is then the key.
func makeKey(path string) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".secrets-key-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	if _, err := tmp.Write(key); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}
