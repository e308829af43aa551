package controllers

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// CreateSnapshot takes a snapshot of the volume, or gives back the one of that
// name. A name is the volume's own: drivers, which want it unique among all
// snapshots, get a longer one. secrets, where given, replace the volume's.
func (c *Controllers) CreateSnapshot(ctx context.Context, v claim.Volume, name string, parameters, secrets map[string]string) (snapshot storage.Snapshot, err error) {
	doing := fmt.Sprintf("take snapshot %q of volume %q (external id %q)", name, v.VolumeRef, v.ExternalID)
	err = c.call(ctx, doing, v.PluginID, snapshotting, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		asked, err := c.asked(ctx, v, current(v), secrets)
		if err != nil {
			return err
		}
		cluster, err := c.cfg.ClusterID(ctx)
		if err != nil {
			return fmt.Errorf("read the cluster's id: %w", err)
		}
		snapshot, err = s.CreateSnapshot(ctx, d.Ref(), storage.CreateSnapshotRequest{
			Name:   driverName(cluster, "snapshot", v.Namespace, v.ID, name),
			Volume: asked, Parameters: parameters,
		})
		return err
	})
	return snapshot, err
}

// DeleteSnapshot deletes a snapshot by the driver's id of it. It may be repeated.
func (c *Controllers) DeleteSnapshot(ctx context.Context, driverID, snapshotID string, secrets map[string]string) error {
	doing := fmt.Sprintf("delete snapshot %q", snapshotID)
	return c.call(ctx, doing, driverID, snapshotting, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		return s.DeleteSnapshot(ctx, d.Ref(), snapshotID, secrets)
	})
}

// ListSnapshots lists a page of the driver's snapshots.
func (c *Controllers) ListSnapshots(ctx context.Context, driverID string, req storage.ListSnapshotsRequest) (list storage.ListSnapshotsResponse, err error) {
	err = c.call(ctx, "list the snapshots", driverID, listingSnaps, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		list, err = s.ListSnapshots(ctx, d.Ref(), req)
		return err
	})
	return list, err
}
