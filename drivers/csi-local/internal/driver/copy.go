package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
	"github.com/pannier/pannier/drivers/csi-local/internal/sparse"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// freezeLimit bounds how long the writers of a mounted volume are blocked for a copy that cannot share blocks.
const freezeLimit = 30 * time.Second

var errFreezeLimit = errors.New("the copy took longer than the file system may stay frozen")

// fillFromSnapshot returns a function that writes a snapshot's content into a new image.
func (d *Driver) fillFromSnapshot(snap store.Snapshot) func(context.Context, *os.File) error {
	return func(ctx context.Context, image *os.File) error {
		err := d.copyImage(ctx, image, d.store.SnapshotImage(snap.ID))
		if errors.Is(err, os.ErrNotExist) {
			return status.Errorf(codes.NotFound, "snapshot %q was deleted meanwhile", snap.ID)
		}
		return err
	}
}

// fillFromVolume returns a function that writes a volume's content, as of one moment, into a new image. The caller
// has the volume in flight.
func (d *Driver) fillFromVolume(v store.Volume) func(context.Context, *os.File) error {
	return func(ctx context.Context, image *os.File) error {
		return d.copyVolumes(ctx, []store.Volume{v}, []*os.File{image}, 0)
	}
}

// copyVolumes writes the content of volumes, as of one moment, into images: their file systems are frozen meanwhile,
// those of the first ones already. A program that has to wait for a write to one of them does not write to another one
// after it, so the copies keep the order of writes. Writes to a block device cannot be suspended: a published one can
// only be cloned, and alone.
func (d *Driver) copyVolumes(ctx context.Context, volumes []store.Volume, images []*os.File, frozen int) error {
	if frozen == len(volumes) {
		for n, v := range volumes {
			if err := d.copyImage(ctx, images[n], d.store.Image(v.ID)); err != nil {
				return err
			}
		}
		return nil
	}
	v := volumes[frozen]
	others := func(ctx context.Context) error { return d.copyVolumes(ctx, volumes, images, frozen+1) }
	u, err := d.usage(v.ID)
	if err != nil {
		return err
	}
	switch m := u.visible(); {
	case m != nil:
		return d.whileFrozen(ctx, v.ID, m, others)
	case u.hidden():
		return status.Errorf(codes.FailedPrecondition,
			"volume %q is mounted where this driver cannot freeze it (%s): unmount it there first", v.ID, u)
	}
	for _, dev := range u.devices {
		if err := dev.Flush(); err != nil {
			return err
		}
	}
	switch {
	case !u.published():
		return others(ctx)
	case len(volumes) > 1:
		return status.Errorf(codes.FailedPrecondition,
			"volume %q is published as a block device, whose writes cannot be suspended: unpublish it first", v.ID)
	}
	return cloneLive(images[0], d.store.Image(v.ID), v.ID)
}

// published reports whether a block device is not only staged but where a workload can write to it.
func (u usage) published() bool {
	count := 0
	for _, n := range u.nodes {
		if n.device.ReadOnly {
			continue
		}
		count++
		if filepath.Base(n.Mountpoint) != filepath.Base(stagedNode("")) {
			return true
		}
	}
	return count > 1
}

// whileFrozen runs fn while the file system of m is frozen. Writers are blocked meanwhile, so fn has at most
// freezeLimit; the thaw does not depend on ctx, and a marker for the next process stays until it is done.
func (d *Driver) whileFrozen(ctx context.Context, id string, m *mountinfo.Info,
	fn func(context.Context) error,
) (err error) {
	if err := d.store.MarkFrozen(id); err != nil {
		return err
	}
	start := time.Now()
	if err := filesystem.Freeze(m); err != nil {
		if errors.Is(err, filesystem.ErrFrozen) {
			err = status.Errorf(codes.FailedPrecondition, "%v: thaw it (fsfreeze -u) and repeat", err)
		}
		return errors.Join(err, d.store.ClearFrozen(id))
	}
	defer func() {
		thaw := filesystem.Thaw(m)
		if thaw == nil {
			thaw = d.store.ClearFrozen(id)
		}
		err = errors.Join(err, thaw)
		d.log.Debug("thawed", "volume_id", id, "frozen_for", time.Since(start).String())
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, freezeLimit, errFreezeLimit)
	defer cancel()
	err = fn(ctx)
	if errors.Is(err, errFreezeLimit) {
		return status.Errorf(codes.FailedPrecondition,
			"copy volume %q: %v (%s): unpublish it first, or keep the volumes on a disk that can share blocks (xfs, btrfs)",
			id, err, freezeLimit)
	}
	return err
}

// cloneLive copies an image that is being written to. Only a clone is consistent then, because writes to a block
// device cannot be suspended.
func cloneLive(image *os.File, srcPath, id string) error {
	src, err := os.Open(srcPath)
	if err != nil {
		return err
	}
	defer src.Close()
	err = sparse.Clone(image, src)
	if errors.Is(err, sparse.ErrNoClone) {
		return status.Errorf(codes.FailedPrecondition,
			"volume %q is published as a block device, and %v: unpublish it first, or keep the volumes on xfs or btrfs", id, err)
	}
	return err
}

// copyImage copies a file that does not change: it shares the blocks, or else copies the bytes if there is room.
func (d *Driver) copyImage(ctx context.Context, image *os.File, srcPath string) error {
	src, err := os.Open(srcPath)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := sparse.Clone(image, src); !errors.Is(err, sparse.ErrNoClone) {
		return err
	}
	need, err := sparse.Allocated(src)
	if err != nil {
		return err
	}
	k, err := d.disk()
	if err != nil {
		return err
	}
	if need > k.available {
		return status.Errorf(codes.ResourceExhausted,
			"the copy needs %d bytes and %d are free on the host's disk: free some space", need, k.available)
	}
	return sparse.Copy(ctx, image, src)
}

// Recover thaws the file systems that an earlier process froze and did not thaw. It must be called before the
// driver serves. A volume that cannot be thawed is logged and retried at the next start; the others still work.
func (d *Driver) Recover(ctx context.Context) error {
	ids, err := d.store.Frozen()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := d.recoverFrozen(ctx, id); err != nil {
			d.log.Error("a volume stays frozen", "volume_id", id, "error", err)
		}
	}
	return d.sweepEphemeral()
}

func (d *Driver) recoverFrozen(ctx context.Context, id string) error {
	u, err := d.usage(id)
	if err != nil {
		return err
	}
	switch m := u.visible(); {
	case m != nil:
		err = filesystem.Thaw(m)
	case u.hidden():
		err = d.thawUnmounted(ctx, id)
	default:
		return d.store.ClearFrozen(id)
	}
	if err != nil {
		return err
	}
	d.log.Warn("thawed a volume that an earlier process had frozen", "volume_id", id)
	return d.store.ClearFrozen(id)
}

// thawUnmounted thaws a file system that was unmounted while it was frozen. The freeze keeps it and its device
// alive, and mounting the device makes it accessible again.
func (d *Driver) thawUnmounted(ctx context.Context, id string) (err error) {
	dev, hold, err := loop.Acquire(ctx, d.store.Image(id), loop.Options{AutoClear: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Close()) }()
	fsType, _, err := filesystem.DetectFile(dev.Path)
	if err != nil {
		return err
	}
	dir, err := d.store.Scratch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	var opts filesystem.Options
	err = filesystem.Mount(dev.Path, dir, fsType, opts)
	if errors.Is(err, unix.EBUSY) { // it was mounted read-only
		err = filesystem.Mount(dev.Path, dir, fsType, opts.WithReadOnly())
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, filesystem.Unmount(ctx, dir)) }()
	table, err := filesystem.ReadTable()
	if err != nil {
		return err
	}
	m := table.At(dir)
	if m == nil {
		return errors.New("the mount that was to thaw it is gone")
	}
	return filesystem.Thaw(m)
}
