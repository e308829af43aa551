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

// The ioctls FIFREEZE and FITHAW, _IOWR('X', 119 and 120, int), on architectures that number ioctls like x86 and
// arm.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// ErrFrozen means that another process has frozen the file system.
var ErrFrozen = errors.New("the file system is frozen already")

// Freeze stops all writes to the file system of m, after everything written before is on its device. The freeze
// survives the process: Thaw must follow, by this process or the next.
func Freeze(m *mountinfo.Info) error {
	err := onRoot(m, func(fd int) error {
		// Most of the data is written before writers are blocked.
		if err := unix.Syncfs(fd); err != nil {
			return err
		}
		return unix.IoctlSetInt(fd, fiFreeze, 0)
	})
	if errors.Is(err, unix.EBUSY) {
		err = ErrFrozen
	}
	if err != nil {
		return fmt.Errorf("freeze %s: %w", m.Mountpoint, err)
	}
	return nil
}

// Thaw reverses Freeze. It succeeds if the file system is not frozen.
func Thaw(m *mountinfo.Info) error {
	err := onRoot(m, func(fd int) error { return unix.IoctlSetInt(fd, fiThaw, 0) })
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw %s: %w", m.Mountpoint, err)
	}
	return nil
}

// onRoot calls fn with a descriptor of the directory where m is mounted. It makes sure that nothing else is
// mounted over it, so that fn does not freeze another file system.
func onRoot(m *mountinfo.Info, fn func(fd int) error) error {
	fd, err := unix.Open(m.Mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if !IsOf(m, st.Dev) {
		return errors.New("another file system is mounted over it")
	}
	return fn(fd)
}

// ErrNotMounted means that the kernel lets this process grow the file system only while it is not mounted.
var ErrNotMounted = errors.New("ext4 cannot be grown while it is mounted, as the driver lacks CAP_SYS_RESOURCE")

// ext4ResizeFS is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64), which resize2fs uses for a mounted file system. Called
// here, it uses the chosen mount; resize2fs would use the first one of the device, which may be read-only.
const ext4ResizeFS = 0x40086610

// GrowsMounted reports whether Grow works for a file system type.
func GrowsMounted(fsType string) bool {
	if fsType != Ext4 {
		return true
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Grow grows the file system of m, mounted read-write, to size bytes, the size of its device. It does nothing if
// the file system has that size.
func (p Programs) Grow(ctx context.Context, m *mountinfo.Info, size int64) error {
	// Read the device and not the image: a new superblock may be only in the device's cache.
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

// GrowUnmounted grows the ext4 file system in an unmounted image to the image's size. If it is interrupted, the
// image is unusable.
func (p Programs) GrowUnmounted(ctx context.Context, image string) error {
	err := p.run(ctx, "e2fsck", "-f", "-p", image)
	var exit *exec.ExitError
	if corrected := errors.As(err, &exit) && exit.ExitCode() == 1; err != nil && !corrected {
		return err
	}
	return p.run(ctx, "resize2fs", image)
}
