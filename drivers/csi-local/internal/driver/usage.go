package driver

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// usage is a snapshot of the users of a volume's image that are visible in the driver's mount namespace.
type usage struct {
	devices []loop.Device
	table   filesystem.Table
	mounts  []*mountinfo.Info // of the file system on one of the devices
	nodes   []deviceNode      // places where one of the devices itself appears
}

// deviceNode is a device node of a volume that is bound to a path.
type deviceNode struct {
	*mountinfo.Info
	device loop.Device
}

// usage reads the loop devices first and the mount table second, so that a device that is released in between has
// no mount.
func (d *Driver) usage(id string) (usage, error) {
	var u usage
	if !store.IsVolumeID(id) {
		return u, nil
	}
	var err error
	if u.devices, err = loop.Find(d.store.Image(id)); err != nil {
		return u, err
	}
	if u.table, err = filesystem.ReadTable(); err != nil {
		return u, err
	}
	for _, dev := range u.devices {
		u.mounts = append(u.mounts, u.table.OfDevice(dev.Rdev)...)
		for _, m := range u.table.OfNode(dev.Name(), dev.Rdev) {
			u.nodes = append(u.nodes, deviceNode{m, dev})
		}
	}
	return u, nil
}

// settleWait is how long to wait for invisible users of a volume to end.
const settleWait = 2 * time.Second

// settled is usage after a short wait for hidden users: a process that was started while the volume was mounted
// may have a copy of the mount until it has set up its own namespace.
func (d *Driver) settled(ctx context.Context, id string) (usage, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(settleWait); ; {
		u, err := d.usage(id)
		if err != nil || !u.hidden() || time.Now().After(deadline) {
			return u, err
		}
		select {
		case <-ctx.Done():
			return u, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// place is the mount at a path. At most one of its fields is set.
type place struct {
	fs    *mountinfo.Info // the volume's file system
	node  *deviceNode     // one of its devices
	other *mountinfo.Info // something that is not the volume's
}

// at returns what is at a resolved path.
func (u usage) at(path string) place {
	top := u.table.At(path)
	if top == nil {
		return place{}
	}
	if slices.Contains(u.mounts, top) {
		return place{fs: top}
	}
	for i := range u.nodes {
		if u.nodes[i].Info == top {
			return place{node: &u.nodes[i]}
		}
	}
	return place{other: top}
}

// visible returns a mount of the volume's file system with nothing mounted over it, or nil.
func (u usage) visible() *mountinfo.Info {
	for _, m := range u.mounts {
		if u.table.At(m.Mountpoint) == m {
			return m
		}
	}
	return nil
}

// hidden reports whether a device is used by something that is not visible from here: it would have detached
// itself otherwise.
func (u usage) hidden() bool {
	return u.visible() == nil && slices.ContainsFunc(u.devices, func(d loop.Device) bool { return d.AutoClear })
}

// elsewhere lists the paths where the volume is, except the given ones.
func (u usage) elsewhere(except ...string) []string {
	var paths []string
	for _, m := range u.mounts {
		paths = append(paths, m.Mountpoint)
	}
	for _, n := range u.nodes {
		paths = append(paths, n.Mountpoint)
	}
	return slices.DeleteFunc(paths, func(p string) bool { return slices.Contains(except, p) })
}

// String describes the users of the volume in errors.
func (u usage) String() string {
	var devices []string
	for _, dev := range u.devices {
		devices = append(devices, dev.Path)
	}
	if paths := u.elsewhere(); len(paths) > 0 {
		return fmt.Sprintf("attached to %s, at %s", strings.Join(devices, ", "), strings.Join(paths, ", "))
	}
	return fmt.Sprintf("attached to %s, by what cannot be seen from here, such as a process with its own mount namespace",
		strings.Join(devices, ", "))
}

// stagedNode returns the path that a staged block volume's device is bound to.
func stagedNode(staging string) string { return filepath.Join(staging, "device") }
