package hostpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
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
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range backing {
		name, err := os.ReadFile(path)
		if err != nil {
			continue // detached since the listing
		}
		// The kernel appends " (deleted)" to the path of a deleted file.
		if !strings.HasPrefix(string(name), dir+"/") {
			continue
		}
		device := filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err := detach(device); err != nil {
			errs = append(errs, err)
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
