// Package atomicfile writes small files so that neither a crash nor the loss of power leaves half of one. It imports
// the standard library only.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteFile replaces the file at path (0600): after a crash it is the old or the
// new one, whole, and once WriteFile has returned nil it is the new one.
func WriteFile(path string, data []byte) error {
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

// SyncDir makes what was created, renamed and removed in a directory survive a loss of power.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
