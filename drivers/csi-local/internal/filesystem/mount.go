package filesystem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy says that somebody still uses a mount.
var ErrBusy = errors.New("still in use")

// Mount mounts the file system on device at target.
func Mount(device, target, fsType string, o Options) error {
	data := o.data
	switch {
	case fsType == XFS && !o.hasData("nouuid"):
		// A copy of a volume has its UUID, and both may be mounted at once.
		data = append([]string{"nouuid"}, data...)
	case fsType == Ext4 && !o.hasData("errors="):
		// Nothing may be written on top of a damaged file system.
		data = append([]string{"errors=remount-ro"}, data...)
	}
	if err := unix.Mount(device, target, fsType, o.flags, strings.Join(data, ",")); err != nil {
		return fmt.Errorf("mount %s (%s) at %s: %w", device, fsType, target, err)
	}
	return nil
}

// Bind makes source, a directory or a device node, appear at target too, with
// the flags of o that a single mount can have. It is one step: the mount is
// made detached, gets its flags, and is then moved into place.
func Bind(source, target string, o Options) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bind %s: open tree: %w", source, err)
	}
	defer unix.Close(tree)
	if o.set != 0 || o.clr != 0 {
		attr := unix.MountAttr{Attr_set: o.set, Attr_clr: o.clr}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fmt.Errorf("bind %s: set flags: %w", source, err)
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s at %s: %w", source, target, err)
	}
	return nil
}

// busyWait is how long Unmount waits for users of a mount to go. A process that
// forks at the wrong moment, this one included, has its files open twice until
// the child has called exec.
const busyWait = time.Second

// Unmount takes the topmost mount at target away. It wraps ErrBusy when a
// process goes on using it.
func Unmount(ctx context.Context, target string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(busyWait); ; {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("unmount %s: %w", target, err)
		case time.Now().After(deadline):
			return fmt.Errorf("unmount %s: %w", target, ErrBusy)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w: %w", target, ErrBusy, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
