package bridge

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

// CreateGroupSnapshot implements storage.GroupSnapshotter. An interrupted call is repeated with the same name, so that
// the driver finds what it has made already.
func (b *Bridge) CreateGroupSnapshot(ctx context.Context, d storage.Driver,
	req storage.CreateGroupSnapshotRequest,
) (storage.GroupSnapshot, error) {
	op := driver.Op{
		RPC: driver.CreateGroupSnapshot, Object: req.Name, Key: "create group " + req.Name,
		Redactor: driver.NewRedactor(req.Secrets),
	}
	return groupDo(ctx, b, d, op, func(ctx context.Context, c csi.GroupControllerClient) (storage.GroupSnapshot, error) {
		resp, err := c.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{
			Name: req.Name, SourceVolumeIds: req.VolumeExternalIDs, Parameters: req.Parameters, Secrets: req.Secrets,
		})
		if err == nil && resp.GetGroupSnapshot().GetGroupSnapshotId() == "" {
			err = withoutID("CreateVolumeGroupSnapshot")
		}
		return groupSnapshot(resp.GetGroupSnapshot()), err
	})
}

// DeleteGroupSnapshot implements storage.GroupSnapshotter.
func (b *Bridge) DeleteGroupSnapshot(ctx context.Context, d storage.Driver, req storage.GroupSnapshotRequest) error {
	_, err := groupDo(ctx, b, d, onGroup(driver.DeleteGroupSnapshot, req),
		func(ctx context.Context, c csi.GroupControllerClient) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
			return c.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
				GroupSnapshotId: req.ID, SnapshotIds: req.SnapshotIDs, Secrets: req.Secrets,
			})
		})
	return absentIsDone(err)
}

// GetGroupSnapshot implements storage.GroupSnapshotter.
func (b *Bridge) GetGroupSnapshot(ctx context.Context, d storage.Driver,
	req storage.GroupSnapshotRequest,
) (storage.GroupSnapshot, error) {
	return groupDo(ctx, b, d, onGroup(driver.GetGroupSnapshot, req),
		func(ctx context.Context, c csi.GroupControllerClient) (storage.GroupSnapshot, error) {
			resp, err := c.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
				GroupSnapshotId: req.ID, SnapshotIds: req.SnapshotIDs, Secrets: req.Secrets,
			})
			return groupSnapshot(resp.GetGroupSnapshot()), err
		})
}

func onGroup(rpc driver.RPC, req storage.GroupSnapshotRequest) driver.Op {
	return driver.Op{RPC: rpc, Object: req.ID, Key: "group " + req.ID, Redactor: driver.NewRedactor(req.Secrets)}
}

// groupDo is do for a call to the group controller service.
func groupDo[T any](ctx context.Context, b *Bridge, d storage.Driver, op driver.Op,
	attempt func(context.Context, csi.GroupControllerClient) (T, error),
) (T, error) {
	return controllerDo(ctx, b, d, op, func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (T, error) {
		if !caps.GroupSnapshots {
			var none T
			return none, lacks("CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")
		}
		return attempt(ctx, c.Group)
	})
}

func groupSnapshot(g *csi.VolumeGroupSnapshot) storage.GroupSnapshot {
	out := storage.GroupSnapshot{ID: g.GetGroupSnapshotId(), Ready: g.GetReadyToUse()}
	if t := g.GetCreationTime(); t != nil {
		out.CreatedAt = t.AsTime()
	}
	for _, s := range g.GetSnapshots() {
		member := snapshot(s)
		member.GroupID = out.ID // a driver may leave it out here
		out.Snapshots = append(out.Snapshots, member)
	}
	return out
}
