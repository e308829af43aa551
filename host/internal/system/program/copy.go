// Package program takes copies of programs to run them from. A program that is run from its copy can be overwritten at
// any time, and what was hashed is what runs.
package program

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/diskspace"
	"github.com/pannier/pannier/internal/trusted"
)

// inodesLeft are left for the agent's ledger and journal, which are on the same disk.
const inodesLeft = 16

// Copy copies a program to a temporary file, .copy-*, in dir, and hashes the bytes that it copied, so that the
// checksum, 64 hex digits, is right even if the file is overwritten meanwhile. The copy may run at once; it is on the
// disk only after atomicfile.Sync. Errors: trusted.Error; ErrWriting; the program is incomplete.
func Copy(src, dir string) (temp, sha string, err error) {
	if err := trusted.File(src); err != nil {
		return "", "", fmt.Errorf("open the program: %w", err)
	}
	// O_NONBLOCK: only a regular file is accepted, and it is checked after it is open.
	in, err := os.OpenFile(src, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", "", fmt.Errorf("open the program: %w", err)
	}
	defer in.Close()
	before, err := in.Stat()
	if err != nil {
		return "", "", fmt.Errorf("look at %s: %w", src, err)
	}
	if !before.Mode().IsRegular() {
		return "", "", fmt.Errorf("%s is not a regular file", src)
	}
	lack, err := diskspace.Lack(dir, uint64(before.Size()), inodesLeft)
	if err == nil && lack != "" {
		err = errors.New(lack)
	}
	if err != nil {
		return "", "", fmt.Errorf("copy the program: %w", err)
	}
	out, err := os.CreateTemp(dir, ".copy-")
	if err != nil {
		return "", "", fmt.Errorf("copy the program: %w", err)
	}
	defer func() {
		err = errors.Join(err, out.Close())
		if err != nil {
			_ = os.Remove(out.Name())
		}
	}()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(out, sum), in); err != nil {
		return "", "", fmt.Errorf("copy %s: %w", src, err)
	}
	after, err := in.Stat()
	if err == nil && (after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime())) {
		err = ErrWriting
	}
	if err == nil {
		err = checkWritten(in)
	}
	if err == nil { // of what will run, whatever becomes of the file
		err = checkComplete(out, before.Size())
	}
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", src, err)
	}
	// Readable by all: it may run as another user.
	if err := out.Chmod(0o555); err != nil {
		return "", "", fmt.Errorf("copy %s: %w", src, err)
	}
	return out.Name(), hex.EncodeToString(sum.Sum(nil)), nil
}

// Sum returns the checksum that Copy would compute.
func Sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return SumOf(f)
}

// SumOf returns the checksum of what r has.
func SumOf(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
