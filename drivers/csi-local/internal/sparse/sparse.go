// Package sparse handles files with holes: it copies them without filling the holes, and reports whether a file has any
// data.
//
// Invariants: a copy reads back byte for byte like its source, and only a file in which every byte is zero is
// called blank.
package sparse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoClone means that the file system cannot share blocks between files (no reflinks).
var ErrNoClone = errors.New("the file system cannot clone files")

// chunk is how many bytes are copied or read between two checks of the context.
const chunk = 8 << 20

// extent is a run of data: [start, end) in bytes.
type extent struct{ start, end int64 }

// Clone makes dst a copy of src that shares its blocks, in one atomic step whose duration does not depend on the
// size. It returns ErrNoClone if the file system has no reflinks, and has not changed dst then.
func Clone(dst, src *os.File) error {
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EXDEV),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return ErrNoClone
	}
	return fmt.Errorf("clone %s to %s: %w", src.Name(), dst.Name(), err)
}

// Copy makes dst, which must be empty, a copy of src with its data and its holes. It stops between two chunks when
// ctx ends; dst is then incomplete.
func Copy(ctx context.Context, dst, src *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(info.Size()); err != nil {
		return err
	}
	return eachExtent(src, info.Size(), func(e extent) error {
		for at := e.start; at < e.end; at += chunk {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("copy %s to %s: %w", src.Name(), dst.Name(), context.Cause(ctx))
			}
			if err := copyRange(dst, src, at, min(chunk, e.end-at)); err != nil {
				return fmt.Errorf("copy %s to %s: %w", src.Name(), dst.Name(), err)
			}
		}
		return nil
	})
}

// copyRange copies n bytes at the same offset of both files, in the kernel if possible: io.CopyN uses
// copy_file_range between two files.
func copyRange(dst, src *os.File, at, n int64) error {
	if _, err := src.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if _, err := dst.Seek(at, io.SeekStart); err != nil {
		return err
	}
	_, err := io.CopyN(dst, src, n)
	return err
}

// Blank reports whether every byte of f is zero. It does not read holes, so it is fast for a file that was only
// enlarged, and it stops at the first other byte.
func Blank(ctx context.Context, f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	buf, zero := make([]byte, 1<<20), make([]byte, 1<<20)
	errData := errors.New("data")
	err = eachExtent(f, info.Size(), func(e extent) error {
		for at := e.start; at < e.end; {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			n := min(int64(len(buf)), e.end-at)
			if _, err := f.ReadAt(buf[:n], at); err != nil {
				return err
			}
			if !bytes.Equal(buf[:n], zero[:n]) {
				return errData
			}
			at += n
		}
		return nil
	})
	if errors.Is(err, errData) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for data in %s: %w", f.Name(), err)
	}
	return true, nil
}

// Allocated returns how many bytes of disk the file occupies.
func Allocated(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return st.Blocks * 512, nil
}

// eachExtent calls fn for each run of data in f, in order. Both it and fn may move the file's offset.
func eachExtent(f *os.File, size int64, fn func(extent) error) error {
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return fmt.Errorf("find data in %s: %w", f.Name(), err)
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find a hole in %s: %w", f.Name(), err)
		}
		if err := fn(extent{start, min(end, size)}); err != nil {
			return err
		}
		at = end
	}
	return nil
}
