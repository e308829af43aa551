package filesystem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// The file systems that a volume can be formatted with.
const (
	Ext4    = "ext4"
	XFS     = "xfs"
	Default = Ext4
)

// ErrUnsupported means that volumes cannot have this file system on this host.
var ErrUnsupported = errors.New("unsupported file system")

const (
	mib = 1 << 20
	// MinBlock is the minimum size of a volume for use as a block device, in bytes.
	MinBlock = 1 * mib
	// minExt4 leaves room for a journal. minXFS is the minimum of mkfs.xfs.
	minExt4, minXFS = 16 * mib, 300 * mib
)

// Supported checks that fsType can be made on this host. The error wraps ErrUnsupported and names what is missing.
func Supported(fsType string) error {
	if fsType != Ext4 && fsType != XFS {
		return fmt.Errorf("%w %q: choose %q or %q", ErrUnsupported, fsType, Ext4, XFS)
	}
	if _, err := lookPath("mkfs." + fsType); err != nil {
		return fmt.Errorf("%w %q: the program mkfs.%s is not on this host, install %s", ErrUnsupported, fsType, fsType,
			packageOf(fsType))
	}
	return nil
}

// MinSize is the smallest volume, in bytes, that can hold fsType.
func MinSize(fsType string) int64 {
	switch fsType {
	case Ext4:
		return minExt4
	case XFS:
		return minXFS
	}
	return MinBlock
}

func packageOf(fsType string) string {
	if fsType == XFS {
		return "xfsprogs"
	}
	return "e2fsprogs"
}

// Positions and magic numbers of the superblocks: ext4's starts at byte 1024 with its magic at offset 56, xfs's at
// byte 0 with its magic first.
const (
	ext4Offset, ext4Magic = 1024, 0xEF53
	xfsMagic              = "XFSB"
)

// ErrElsewhere means that a file system would make the kernel read and write another device than the volume's. xfs asks
// for one only by mount flags.
var ErrElsewhere = errors.New("the superblock names a journal on another device")

// Detect returns the type of the file system in an image and its size in bytes. The type is empty if it is neither
// ext4 nor xfs, which does not mean that the image has no data. The size is current only while nothing is mounted.
// The error may be ErrElsewhere: whoever has written the image chose it.
func Detect(image io.ReaderAt) (fsType string, size int64, err error) {
	var sb [2048]byte
	if n, err := image.ReadAt(sb[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return "", 0, fmt.Errorf("read superblock: %w", err)
	} else if n < len(sb) {
		return "", 0, nil
	}
	if string(sb[:4]) == xfsMagic {
		blockSize := int64(binary.BigEndian.Uint32(sb[4:]))
		return XFS, int64(binary.BigEndian.Uint64(sb[8:])) * blockSize, nil
	}
	if ext := sb[ext4Offset:]; binary.LittleEndian.Uint16(ext[0x38:]) == ext4Magic {
		const hasJournal = 0x4 // of s_feature_compat
		journal, device := binary.LittleEndian.Uint32(ext[0xE0:]), binary.LittleEndian.Uint32(ext[0xE4:])
		if device != 0 || journal == 0 && binary.LittleEndian.Uint32(ext[0x5C:])&hasJournal != 0 {
			return "", 0, ErrElsewhere
		}
		blocks := int64(binary.LittleEndian.Uint32(ext[0x150:]))<<32 | int64(binary.LittleEndian.Uint32(ext[4:]))
		return Ext4, blocks * (1024 << binary.LittleEndian.Uint32(ext[0x18:])), nil
	}
	return "", 0, nil
}

// DetectFile is Detect on the image at path.
func DetectFile(path string) (fsType string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	return Detect(f)
}

// Programs runs the programs that make and grow file systems. They are killed with the driver, and hold Inherit
// open until they have ended, so that the next driver can wait for them.
type Programs struct {
	Inherit *os.File
}

// Format makes a file system on a device. Without force, mkfs also refuses a device with known content.
func (p Programs) Format(ctx context.Context, fsType, device string, force bool) error {
	if err := Supported(fsType); err != nil {
		return err
	}
	// The image is sparse and all zero: discarding it and zeroing its inode
	// tables would only fill the holes.
	args := []string{"-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}
	if fsType == XFS {
		args = []string{"-q", "-K"}
	}
	if force {
		args = append(args, map[string]string{Ext4: "-F", XFS: "-f"}[fsType])
	}
	return p.run(ctx, "mkfs."+fsType, append(args, device)...)
}

// sbin lists the directories of administration programs, which may not be in the driver's PATH.
var sbin = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// lookPath is exec.LookPath that also looks in sbin.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range sbin {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	return path, err
}

func (p Programs) run(ctx context.Context, name string, args ...string) error {
	// The kernel sends Pdeathsig when the starting thread ends, so keep that thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path, err := lookPath(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.Inherit != nil {
		cmd.ExtraFiles = []*os.File{p.Inherit}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w: %s", cmd, err, lastLines(out.String(), 5))
	}
	return nil
}

// lastLines returns the end of a program's output in one line.
func lastLines(out string, n int) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
