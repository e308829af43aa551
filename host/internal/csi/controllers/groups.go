package controllers

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// CreateGroupSnapshot takes snapshots of volumes of one driver and one namespace as of one moment, or returns the
// existing ones of that name (CreateVolumeGroupSnapshot). Names are unique per namespace; drivers get a longer one.
func (c *Controllers) CreateGroupSnapshot(ctx context.Context, volumes []claim.Volume, name string, parameters,
	secrets map[string]string,
) (taken storage.GroupSnapshot, err error) {
	first := volumes[0]
	doing := fmt.Sprintf("take group snapshot %q of %d volumes", name, len(volumes))
	err = c.call(ctx, doing, first.PluginID, anyController.of(first).with(secrets),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			cluster, err := c.cfg.ClusterID(ctx)
			if err != nil {
				return fmt.Errorf("read the cluster's id: %w", err)
			}
			req := storage.CreateGroupSnapshotRequest{
				Name:       driverName(cluster, "group snapshot", first.Namespace, name),
				Parameters: parameters, Secrets: secrets,
			}
			for _, v := range volumes {
				req.VolumeExternalIDs = append(req.VolumeExternalIDs, v.ExternalID)
			}
			taken, err = s.CreateGroupSnapshot(ctx, d.Ref(), req)
			return err
		})
	return taken, err
}

// MemberName is the name of the snapshot of a volume in a group snapshot, unique in the namespace.
func MemberName(group, volumeID string) string { return driverName("", "member", group, volumeID) }

// DeleteGroupSnapshot deletes a group with its snapshots by the driver's id of it, and returns their ids as far as they
// are known. It may be repeated.
func (c *Controllers) DeleteGroupSnapshot(ctx context.Context, driverID string,
	req storage.GroupSnapshotRequest,
) (deleted []string, err error) {
	err = onGroup(ctx, c.everywhere, "delete", driverID, req,
		func(ctx context.Context, s storage.Client, d drivers.Driver, req storage.GroupSnapshotRequest) error {
			deleted = append(deleted, req.SnapshotIDs...)
			return s.DeleteGroupSnapshot(ctx, d.Ref(), req)
		})
	return deleted, err
}

// GetGroupSnapshot reads a group with its snapshots by the driver's id of it.
func (c *Controllers) GetGroupSnapshot(ctx context.Context, driverID string,
	req storage.GroupSnapshotRequest,
) (got storage.GroupSnapshot, err error) {
	err = onGroup(ctx, c.call, "read", driverID, req,
		func(ctx context.Context, s storage.Client, d drivers.Driver, req storage.GroupSnapshotRequest) error {
			got, err = s.GetGroupSnapshot(ctx, d.Ref(), req)
			return err
		})
	return got, err
}

// onGroup makes a call about a group. Some drivers need the ids of its snapshots: they are looked up if the request
// does not have them, and the driver lists its snapshots.
func onGroup(ctx context.Context, ask func(ctx context.Context, doing, driver string, need ability, fn call) error,
	does, driverID string, req storage.GroupSnapshotRequest,
	fn func(ctx context.Context, s storage.Client, d drivers.Driver, req storage.GroupSnapshotRequest) error,
) error {
	doing := fmt.Sprintf("%s group snapshot %q", does, req.ID)
	call := func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		req := req
		if len(req.SnapshotIDs) == 0 {
			var err error
			if req.SnapshotIDs, err = members(ctx, s, d, req); err != nil {
				return fmt.Errorf("find its snapshots: %w", err)
			}
		}
		return fn(ctx, s, d, req)
	}
	return ask(ctx, doing, driverID, anyController.with(req.Secrets), call)
}

// members lists the ids of a group's snapshots; none if the driver does not list snapshots.
func members(ctx context.Context, s storage.Client, d drivers.Driver, of storage.GroupSnapshotRequest) (ids []string,
	err error,
) {
	for token := ""; ; {
		list, err := s.ListSnapshots(ctx, d.Ref(),
			storage.ListSnapshotsRequest{Page: storage.Page{Token: token}, Secrets: of.Secrets})
		if status.Code(err) == codes.Unimplemented {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, snapshot := range list.Snapshots {
			if snapshot.GroupID == of.ID {
				ids = append(ids, snapshot.ID)
			}
		}
		if list.Next == "" || list.Next == token {
			return ids, nil
		}
		token = list.Next
	}
}
