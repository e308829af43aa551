package hostpath

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// cleanUp unmounts everything below dir and detaches the loop devices of files there. It continues after a
// failure, so that as little as possible is left.
func cleanUp(dir string) error {
	return errors.Join(unmountBelow(dir), detachBelow(dir))
}

// unmountBelow unmounts the newest mount first, because it may be below an older one.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list the mounts below %s: %w", dir, err)
	}
	var errs []error
	for _, m := range slices.Backward(mounts) {
		err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// Peers in a shared group disappear with the first of them.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}

// detachBelow reads from sysfs which file each loop device has.
func detachBelow(dir string) error {
	var errs []error
	for name, file := range procfs.LoopFiles() {
		if strings.HasPrefix(file, dir+"/") {
			errs = append(errs, detach("/dev/"+name))
		}
	}
	return errors.Join(errs...)
}

func detach(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("detach a loop device: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", device, err)
	}
	return nil
}
