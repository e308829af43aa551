package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/sdk/storage"
)

// publish mounts the volume for this request. The host makes the parent of the
// target, the driver makes the target (CSI spec, NodePublishVolume). A link in the
// way stays as it is: the driver is not asked, for the start nor for its undoing.
func (r *run) publish(ctx context.Context, v *volume) error {
	there, err := mounts.At(v.Target)
	if err != nil {
		return err
	}
	switch {
	case there != nil && v.Mounted != nil && v.Mounted.Same(*there):
		return nil // published before a restart of the host
	case there != nil && !r.resumed:
		// It may be the volume, left by an earlier run: undoing takes it away, and the
		// claim goes after that.
		return fmt.Errorf("publish volume %q: %s is mounted already and not by this workload: %s", v.Ref, v.Target, there)
	}
	asked, err := r.asked(ctx, v)
	if err != nil {
		return err
	}
	if err := r.Layout.MakeParent(v.Target); err != nil {
		return untouchedError{fmt.Errorf("make the directory of volume %q: %w", v.Ref, err)}
	}
	if err := r.guard(ctx, v, r.targetMount(v.volumeRecord)); err != nil {
		return err
	}
	err = r.call(ctx, "publish", v, r.limits.driver, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
		req := storage.PublishRequest{
			Volume: asked, PublishContext: v.PublishContext, TargetPath: d.Translate(v.Target), ReadOnly: v.Usage.ReadOnly,
		}
		if stages(v) {
			req.StagingPath = d.Translate(v.Staging)
		}
		return c.Publish(ctx, d.Ref(), req)
	})
	if err != nil {
		return err
	}
	if err := r.Lease.Valid(); err != nil {
		return err
	}
	mounted, err := r.published(v)
	if err != nil {
		return fmt.Errorf("publish volume %q for %s on driver %q: %w", v.Ref, r.instance, v.Driver, err)
	}
	if v.info.Grown && !v.Usage.ReadOnly {
		if err := r.grow(ctx, v); err != nil {
			return err
		}
	}
	return r.update(nil, func(*record) { v.Mounted = mounted })
}

// grow makes what is in the volume as big as the volume, which may have grown
// while nobody had it mounted. A driver that has done so says so (CSI spec,
// NodeExpandVolume, is to be idempotent).
func (r *run) grow(ctx context.Context, v *volume) error {
	if n := v.driver.Fingerprint.Node; n == nil || !n.Expand {
		return nil
	}
	asked, err := r.asked(ctx, v)
	if err != nil {
		return err
	}
	return r.call(ctx, "expand", v, r.limits.driver, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
		req := storage.ExpandNodeRequest{Volume: asked, CapacityMin: v.info.CapacityMin, CapacityMax: v.info.CapacityMax, VolumePath: d.Translate(v.Target)}
		if stages(v) {
			req.StagingPath = d.Translate(v.Staging)
		}
		_, err := c.ExpandNode(ctx, d.Ref(), req)
		return err
	})
}

// published looks at what the driver made. A success without a mount would let
// the workload write to the host's own disk.
func (r *run) published(v *volume) (*mounts.Mount, error) {
	m, err := mounts.At(v.Target)
	if err != nil {
		return nil, err
	}
	if v.Usage.AttachmentMode == claim.BlockDevice {
		block, err := mounts.BlockDevice(v.Target)
		if err == nil && !block {
			err = fmt.Errorf("the driver answered with success, but %s is no block device", v.Target)
		}
		return m, err
	}
	switch {
	case m == nil:
		return nil, fmt.Errorf("the driver answered with success, but nothing is mounted at %s: does it mount in a namespace of its own? (docs/drivers.md, propagation)", v.Target)
	case v.Usage.ReadOnly && !m.ReadOnly:
		return nil, errors.New("the driver answered with success, but the mount is not read-only")
	}
	return m, nil
}

// unpublish takes the mount of this request away.
func (r *run) unpublish(ctx context.Context, v *volume) error {
	err := r.call(ctx, "unpublish", v, 0, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
		return c.Unpublish(ctx, d.Ref(), v.known(), d.Translate(v.Target))
	})
	if err != nil {
		return err
	}
	if err := r.clear(v.Target); err != nil {
		return err
	}
	return r.Lease.Release(ctx, r.targetMount(v.volumeRecord))
}
