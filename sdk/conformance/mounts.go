package conformance

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountsAt returns the mounts at a path, the uppermost last.
func mountsAt(path string) ([]*mountinfo.Info, error) {
	infos, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	return infos, nil
}

// once returns the mount at a path, and fails unless there is exactly one.
func once(path string) (*mountinfo.Info, error) {
	infos, err := mountsAt(path)
	switch {
	case err != nil:
		return nil, err
	case len(infos) == 0:
		return nil, fmt.Errorf("nothing is mounted at the %s path", filepath.Base(path))
	case len(infos) > 1:
		return nil, fmt.Errorf("%d mounts are stacked at the %s path", len(infos), filepath.Base(path))
	}
	return infos[0], nil
}

// none fails if something is mounted at a path.
func none(path string) error {
	infos, err := mountsAt(path)
	if err == nil && len(infos) > 0 {
		err = fmt.Errorf("the %s path is still mounted", filepath.Base(path))
	}
	return err
}

// mountsBelow returns the mount points below a directory.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	var points []string
	for _, m := range infos {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}

// leave reports something that the plugin has left behind.
func (r *run) leave(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Left = append(r.report.Left, fmt.Sprintf(format, args...))
}

// unmountBelow unmounts and reports what a plugin has left mounted in a directory of the kit. That deletes nothing: the
// data stays in the volume.
func (r *run) unmountBelow(dir string) {
	points, err := mountsBelow(dir)
	if err != nil {
		r.leave("%v", err)
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			r.leave("mount %s, and it could not be unmounted: %v", point, err)
			continue
		}
		r.leave("mount %s", point)
	}
}
