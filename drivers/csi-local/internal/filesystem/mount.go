// Package filesystem makes, recognises, mounts, grows and freezes the file systems that a volume may have (ext4
// and xfs), and reads the mount table. It knows devices and paths, not volumes.
//
// Invariants: a publish is one step (a bind mount appears with all its flags or not at all), so a crash leaves
// nothing half mounted. Mount flags, which may contain secrets, are in no error. The package needs Linux 5.12
// (mount_setattr).
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ErrBusy means that a mount is still in use.
var ErrBusy = errors.New("still in use")

// Mount mounts the file system on device at target.
func Mount(device, target, fsType string, o Options) error {
	data := o.data
	switch {
	case fsType == XFS && !o.hasData("nouuid"):
		// A copy of a volume has the same UUID, and both may be mounted at once.
		data = append([]string{"nouuid"}, data...)
	case fsType == Ext4 && !o.hasData("errors="):
		// Nothing may be written to a damaged file system.
		data = append([]string{"errors=remount-ro"}, data...)
	}
	if err := unix.Mount(device, target, fsType, o.flags, strings.Join(data, ",")); err != nil {
		return fmt.Errorf("mount %s (%s) at %s: %w", device, fsType, target, err)
	}
	return nil
}

// Bind makes source, a directory or a device node, appear at target too, with those flags of o that a single mount
// can have. It is one step: the mount is made detached, gets its flags, and is then moved into place.
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

// busyWait is how long Unmount waits for the users of a mount to end. A process that forks at the wrong moment,
// this one included, has its files open twice until the child has called exec.
const busyWait = time.Second

// Unmount unmounts the topmost mount at target. It wraps ErrBusy if the mount stays in use.
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

// ErrMountFlag means that a mount flag is not allowed. The error contains the flag's position and not the flag, which
// may be a secret.
var ErrMountFlag = errors.New("mount flag not allowed")

// Options are parsed mount flags.
type Options struct {
	flags    uintptr  // MS_* for mount(2)
	data     []string // options for the file system itself
	set, clr uint64   // MOUNT_ATTR_* for mount_setattr(2)
}

type flag struct {
	set, clr  uintptr // for mount(2)
	aset, acl uint64  // for mount_setattr(2)
	shown     bool    // the mount table shows it for each mount
}

var known = map[string]flag{
	"ro":          {set: unix.MS_RDONLY, aset: unix.MOUNT_ATTR_RDONLY, shown: true},
	"rw":          {clr: unix.MS_RDONLY},
	"nosuid":      {set: unix.MS_NOSUID, aset: unix.MOUNT_ATTR_NOSUID, shown: true},
	"suid":        {clr: unix.MS_NOSUID},
	"nodev":       {set: unix.MS_NODEV, aset: unix.MOUNT_ATTR_NODEV, shown: true},
	"dev":         {clr: unix.MS_NODEV},
	"noexec":      {set: unix.MS_NOEXEC, aset: unix.MOUNT_ATTR_NOEXEC, shown: true},
	"exec":        {clr: unix.MS_NOEXEC},
	"nosymfollow": {set: unix.MS_NOSYMFOLLOW, aset: unix.MOUNT_ATTR_NOSYMFOLLOW, shown: true},
	"nodiratime":  {set: unix.MS_NODIRATIME, aset: unix.MOUNT_ATTR_NODIRATIME, shown: true},
	"noatime":     {set: unix.MS_NOATIME, aset: unix.MOUNT_ATTR_NOATIME, acl: unix.MOUNT_ATTR__ATIME, shown: true},
	"relatime":    {set: unix.MS_RELATIME, aset: unix.MOUNT_ATTR_RELATIME, acl: unix.MOUNT_ATTR__ATIME},
	"strictatime": {set: unix.MS_STRICTATIME, aset: unix.MOUNT_ATTR_STRICTATIME, acl: unix.MOUNT_ATTR__ATIME},
	"sync":        {set: unix.MS_SYNCHRONOUS},
	"dirsync":     {set: unix.MS_DIRSYNC},
	"lazytime":    {set: unix.MS_LAZYTIME},
	"defaults":    {},
}

// forbidden are flags that would make a different kind of mount, use another device or file than the volume's, give
// its files another security label, or stop the host.
var forbidden = []string{
	"bind", "rbind", "remount", "move", "shared", "rshared", "private", "rprivate",
	"slave", "rslave", "unbindable", "runbindable", "loop", "offset", "sizelimit",
	"source", "journal_dev", "journal_path", "logdev", "rtdev",
	"context", "fscontext", "defcontext", "rootcontext",
	"smackfsdef", "smackfsroot", "smackfshat", "smackfsfloor", "smackfstransmute",
	"errors=panic",
}

// ParseOptions parses mount flags; one string may have several, separated by commas. Unknown flags are passed to
// the file system.
func ParseOptions(mountFlags []string) (Options, error) {
	var o Options
	for i, group := range mountFlags {
		for name := range strings.SplitSeq(group, ",") {
			key, _, _ := strings.Cut(name, "=")
			if slices.Contains(forbidden, key) || slices.Contains(forbidden, name) || strings.ContainsAny(name, "\x00\n") {
				return Options{}, fmt.Errorf("%w: number %d asks for another kind of mount, another device, or a panic of the host",
					ErrMountFlag, i+1)
			}
			o.add(name)
		}
	}
	return o, nil
}

// WithReadOnly returns o for a read-only mount.
func (o Options) WithReadOnly() Options {
	o.add("ro")
	return o
}

// ReadOnly reports whether the mount is read-only.
func (o Options) ReadOnly() bool { return o.flags&unix.MS_RDONLY != 0 }

func (o *Options) add(name string) {
	f, ok := known[name]
	switch {
	case name == "":
	case !ok:
		o.data = append(o.data, name)
	default:
		o.flags = o.flags&^f.clr | f.set
		o.set, o.clr = o.set&^f.acl|f.aset, o.clr|f.acl
		if name == "rw" {
			o.set &^= unix.MOUNT_ATTR_RDONLY
		}
	}
}

// hasData reports whether an option for the file system has this prefix.
func (o Options) hasData(prefix string) bool {
	return slices.ContainsFunc(o.data, func(s string) bool { return strings.HasPrefix(s, prefix) })
}

// Match compares an existing mount with o, as far as the mount table shows it: whether it is read-only, and each
// flag of a single mount. It returns the difference, or nil.
func (o Options) Match(m *mountinfo.Info) error {
	have := strings.Split(m.Options, ",")
	if ro := slices.Contains(have, "ro"); ro != o.ReadOnly() {
		return fmt.Errorf("it is mounted %s", map[bool]string{true: "read-only", false: "read-write"}[ro])
	}
	for name, f := range known {
		if f.shown && o.set&f.aset != 0 && !slices.Contains(have, name) {
			return fmt.Errorf("it is mounted without %q", name)
		}
	}
	return nil
}
