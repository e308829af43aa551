// Package filesystem makes, recognises, mounts, grows and freezes the file
// systems that a volume may hold (ext4 and xfs), and reads the mount table. It
// knows devices and paths, not volumes.
//
// What must stay true: a publish is one step (a bind mount appears with all its
// flags or not at all), so a crash leaves nothing half mounted; mount flags,
// which may carry secrets, are in no error. It needs Linux 5.12 (mount_setattr)
// and imports the standard library, golang.org/x/sys/unix and
// moby/sys/mountinfo only.
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

// ErrMountFlag says that a mount flag is not allowed. The flag itself is in no
// error, as it may be a secret; its position is.
var ErrMountFlag = errors.New("mount flag not allowed")

// Options are parsed mount flags.
type Options struct {
	flags    uintptr  // MS_* for mount(2)
	data     []string // what the file system itself is to understand
	set, clr uint64   // MOUNT_ATTR_* for mount_setattr(2)
	visible  []string // those that the mount table shows for a single mount
}

type flag struct {
	set, clr  uintptr // for mount(2)
	aset, acl uint64  // for mount_setattr(2)
	shown     bool    // the mount table has it for each mount
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

// forbidden would make another mount than the one that was asked for.
var forbidden = []string{
	"bind", "rbind", "remount", "move", "shared", "rshared", "private", "rprivate",
	"slave", "rslave", "unbindable", "runbindable", "loop", "offset", "sizelimit",
}

// ParseOptions reads mount flags; one string may hold several, with commas.
// What is not known here is left to the file system.
func ParseOptions(mountFlags []string) (Options, error) {
	var o Options
	for i, group := range mountFlags {
		for name := range strings.SplitSeq(group, ",") {
			key, _, _ := strings.Cut(name, "=")
			if slices.Contains(forbidden, key) || strings.ContainsAny(name, "\x00\n") {
				return Options{}, fmt.Errorf("%w: number %d asks for another kind of mount", ErrMountFlag, i+1)
			}
			o.add(name)
		}
	}
	return o, nil
}

// WithReadOnly is o for a read-only mount.
func (o Options) WithReadOnly() Options {
	o.data, o.visible = slices.Clone(o.data), slices.Clone(o.visible)
	o.add("ro")
	return o
}

// ReadOnly reports whether the mount is to be read-only.
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
		if f.shown && !slices.Contains(o.visible, name) {
			o.visible = append(o.visible, name)
		}
		if name == "rw" {
			o.set &^= unix.MOUNT_ATTR_RDONLY
			o.visible = slices.DeleteFunc(o.visible, func(s string) bool { return s == "ro" })
		}
	}
}

// hasData reports whether the file system is given an option that begins so.
func (o Options) hasData(prefix string) bool {
	return slices.ContainsFunc(o.data, func(s string) bool { return strings.HasPrefix(s, prefix) })
}

// Match tells whether an existing mount is what o asks for, as far as the mount
// table shows it: read-only or not, and each flag that a single mount has. It
// returns what differs, or nil.
func (o Options) Match(m *mountinfo.Info) error {
	have := strings.Split(m.Options, ",")
	if ro := slices.Contains(have, "ro"); ro != o.ReadOnly() {
		return fmt.Errorf("it is mounted %s", map[bool]string{true: "read-only", false: "read-write"}[ro])
	}
	for _, want := range o.visible {
		if !slices.Contains(have, want) {
			return fmt.Errorf("it is mounted without %q", want)
		}
	}
	return nil
}
