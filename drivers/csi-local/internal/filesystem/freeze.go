package filesystem

import (
	"errors"
	"fmt"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// The ioctls that freeze and thaw: FIFREEZE and FITHAW, _IOWR('X', 119 and
// 120, int), on the architectures that number ioctls like x86 and arm.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// ErrFrozen says that a file system was frozen already, by somebody else.
var ErrFrozen = errors.New("the file system is frozen already")

// Freeze stops all writes to the file system that m mounts, with everything
// that was written before on its device. It outlives the process: Thaw must
// follow, by this process or the next.
func Freeze(m *mountinfo.Info) error {
	err := onRoot(m, func(fd int) error {
		// Most of the writing is done before writers have to wait.
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

// Thaw undoes Freeze. A file system that is not frozen is no error.
func Thaw(m *mountinfo.Info) error {
	err := onRoot(m, func(fd int) error { return unix.IoctlSetInt(fd, fiThaw, 0) })
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw %s: %w", m.Mountpoint, err)
	}
	return nil
}

// onRoot calls fn with a descriptor of the directory at which m is mounted. It
// makes sure that nothing else has been mounted over it: fn must not freeze
// another file system.
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
