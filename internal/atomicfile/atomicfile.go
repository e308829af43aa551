// Package atomicfile writes small files so that neither a crash nor a loss of power leaves half of one.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteFile replaces the file at path (0600). After a crash the file has all of the old or all of the new contents;
// once WriteFile has returned nil it has the new ones.
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

// SyncDir makes changes to a directory (created, renamed and removed files) survive a loss of power.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
