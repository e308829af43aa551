// Package atomicfile writes small files so that neither a crash nor a loss of power leaves half of one.
package atomicfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile replaces the file at path (0600). After a crash the file has all of the old or all of the new contents;
// once WriteFile has returned nil it has the new ones. A file that has them already is not written again.
func WriteFile(path string, data []byte) error {
	if has(path, data) {
		return SyncDir(filepath.Dir(path)) // an earlier call may have ended before it did
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".write-") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteJSON is WriteFile for a value in JSON.
func WriteJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'))
}

// has reports whether a regular file (0600) has the contents that an earlier WriteFile, which synced them, gave it.
func has(path string, data []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != int64(len(data)) {
		return false
	}
	now, err := os.ReadFile(path)
	return err == nil && bytes.Equal(now, data)
}

// Create makes the file at path (0600) of what write writes: after a crash it is complete or not there. It replaces
// nothing: the error is fs.ErrExist if there is a file, also one that has appeared meanwhile.
func Create(path string, write func(f *os.File) error) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w", path, fs.ErrExist)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".create-") // 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil { // a rename would replace a file
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes changes to a directory (created, renamed and removed files) survive a loss of power.
func SyncDir(dir string) error { return Sync(dir) }

// Sync returns when a file, or a directory's entries, are on the disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
