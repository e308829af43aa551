package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ErrNotMounted says that the kernel lets this process grow the file system
// only while it is not mounted.
var ErrNotMounted = errors.New("ext4 cannot be grown while it is mounted, as the driver lacks CAP_SYS_RESOURCE")

// ext4ResizeFS is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64): what resize2fs does
// to a mounted file system. Done here it grows the very mount that was chosen;
// resize2fs takes the first one of the device, which may be read-only.
const ext4ResizeFS = 0x40086610

// GrowsMounted reports whether Grow can work for a file system type.
func GrowsMounted(fsType string) bool {
	if fsType != Ext4 {
		return true
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Grow makes the file system that m mounts, read-write, fill size bytes, the
// size of its device. One that does already is left as it is.
func (p Programs) Grow(ctx context.Context, m *mountinfo.Info, size int64) error {
	// The device and not the image: a superblock may be in its cache only.
	if _, have, err := DetectFile(m.Source); err == nil && have >= size {
		return nil
	}
	if m.FSType == XFS {
		return p.run(ctx, "xfs_growfs", "-d", m.Mountpoint)
	}
	if !GrowsMounted(Ext4) {
		return ErrNotMounted
	}
	err := onRoot(m, func(fd int) error {
		var st unix.Statfs_t
		if err := unix.Fstatfs(fd, &st); err != nil {
			return err
		}
		blocks := uint64(size) / uint64(st.Bsize)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ext4ResizeFS, uintptr(unsafe.Pointer(&blocks)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("grow ext4 at %s to %d bytes: %w", m.Mountpoint, size, err)
	}
	return nil
}

// GrowUnmounted makes the ext4 in an image, which is not mounted, fill it. An
// image in which it was cut short is of no use any more.
func (p Programs) GrowUnmounted(ctx context.Context, image string) error {
	err := p.run(ctx, "e2fsck", "-f", "-p", image)
	var exit *exec.ExitError
	if corrected := errors.As(err, &exit) && exit.ExitCode() == 1; err != nil && !corrected {
		return err
	}
	return p.run(ctx, "resize2fs", image)
}
