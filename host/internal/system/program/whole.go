package program

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/machine"
)

// ErrWriting means that another process has a file open for writing, or changed it while it was read.
var ErrWriting = errors.New("it is still being written")

// checkWritten returns ErrWriting if a process has the file open for writing. On file systems that cannot tell, it
// returns nil; a file is then taken when the directory has settled.
func checkWritten(f *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return nil //nolint:nilerr // it cannot tell
	}
	switch uint32(fs.Type) {
	case unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC: // their leases are of other clients
		return nil
	}
	// A read lease is refused while a process has the file open for writing (fcntl(2)).
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	switch {
	case err == nil:
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return err
	case errors.Is(err, unix.EAGAIN):
		return ErrWriting
	default:
		return nil // no leases here, or the file belongs to another user
	}
}

// checkComplete returns why a program of size bytes is not complete: all that its ELF headers name must be within
// it. Of a file that is no ELF program, such as a script, nothing is known.
func checkComplete(r io.ReaderAt, size int64) error {
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := r.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(magic, []byte(elf.ELFMAG)) {
		return nil
	}
	program, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("it is incomplete: its headers cannot be read: %w", err)
	}
	outside := func(offset, length uint64) bool {
		return offset > uint64(size) || length > uint64(size)-offset
	}
	for _, s := range program.Sections {
		if s.Type != elf.SHT_NOBITS && outside(s.Offset, s.FileSize) {
			return fmt.Errorf("it is incomplete: section %s ends at byte %d, and the file has %d", s.Name, s.Offset+s.FileSize,
				size)
		}
	}
	for _, p := range program.Progs {
		if outside(p.Off, p.Filesz) {
			return fmt.Errorf("it is incomplete: a segment ends at byte %d, and the file has %d", p.Off+p.Filesz, size)
		}
	}
	return nil
}

// CheckWhole returns why an executable must not be run now: ErrWriting, or that it is incomplete.
func CheckWhole(f *os.File) error {
	if err := checkWritten(f); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return checkComplete(f, info.Size())
}

// ExplainExec adds to the error of a start which machine a program is for.
func ExplainExec(err error, path string) error {
	if !errors.Is(err, unix.ENOEXEC) {
		return err
	}
	f, openErr := os.Open(path)
	if openErr != nil {
		return err
	}
	defer f.Close()
	if why := machine.Check(f, runtime.GOARCH); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}
