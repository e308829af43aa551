package filesystem

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ext4ResizeFS is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64): what resize2fs does
// to a mounted file system. Done here it grows the very mount that was chosen;
// resize2fs takes the first one of the device, which may be read-only.
const ext4ResizeFS = 0x40086610

// Grow makes the file system that m mounts, read-write, fill size bytes, the
// size of its device. One that does already is left as it is.
func (p Programs) Grow(ctx context.Context, m *mountinfo.Info, size int64) error {
	if m.FSType == XFS {
		return p.run(ctx, "xfs_growfs", "-d", m.Mountpoint)
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
