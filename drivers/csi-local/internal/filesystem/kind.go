package filesystem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// The file systems that a volume can be formatted with.
const (
	Ext4    = "ext4"
	XFS     = "xfs"
	Default = Ext4
)

// ErrUnsupported says that volumes cannot have this file system here.
var ErrUnsupported = errors.New("unsupported file system")

const (
	mib = 1 << 20
	// MinBlock is the smallest volume that is used as a block device, in bytes.
	MinBlock = 1 * mib
	// minExt4 leaves room for a journal. minXFS is what mkfs.xfs insists on.
	minExt4, minXFS = 16 * mib, 300 * mib
)

// Supported tells whether fsType can be made on this host, else what is
// missing. It wraps ErrUnsupported.
func Supported(fsType string) error {
	if fsType != Ext4 && fsType != XFS {
		return fmt.Errorf("%w %q: choose %q or %q", ErrUnsupported, fsType, Ext4, XFS)
	}
	if _, err := lookPath("mkfs." + fsType); err != nil {
		return fmt.Errorf("%w %q: the program mkfs.%s is not on this host, install %s", ErrUnsupported, fsType, fsType, packageOf(fsType))
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

// Where the superblocks are and what is in them: ext4 begins at byte 1024 with
// its magic at 56, xfs at byte 0 with its magic first.
const (
	ext4Offset, ext4Magic = 1024, 0xEF53
	xfsMagic              = "XFSB"
)

// Detect returns the type of the file system in an image and its size in bytes;
// the type is empty when it is none of ours, which does not mean that the image
// holds no data. The size is up to date only while nothing is mounted.
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
