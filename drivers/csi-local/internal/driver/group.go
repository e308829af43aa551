package driver

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// GroupControllerGetCapabilities reports group snapshots.
func (d groups) GroupControllerGetCapabilities(context.Context,
	*csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot copies the images of several volumes as of one moment: all mounted ones are frozen
// meanwhile.
func (d groups) CreateVolumeGroupSnapshot(ctx context.Context,
	req *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "name: %v", err)
	}
	for key := range req.GetParameters() {
		return nil, status.Errorf(codes.InvalidArgument, "parameter %q is unknown: group snapshots have none", key)
	}
	sources := slices.Compact(slices.Sorted(slices.Values(req.GetSourceVolumeIds())))
	if len(sources) == 0 {
		return nil, status.Error(codes.InvalidArgument, "source_volume_ids are missing")
	}
	g := store.Group{ID: store.GroupID(req.GetName()), Name: req.GetName(), CreatedAt: time.Now().UTC()}
	for _, id := range sources {
		g.Snapshots = append(g.Snapshots, store.MemberID(g.ID, id))
	}
	end, err := d.flight.begin("CreateVolumeGroupSnapshot", append(append([]string{g.ID}, sources...), g.Snapshots...)...)
	if err != nil {
		return nil, err
	}
	defer end()
	existing, err := d.store.Group(g.ID)
	switch {
	case err == nil && !slices.Equal(existing.Snapshots, g.Snapshots):
		return nil, status.Errorf(codes.AlreadyExists,
			"group snapshot %q exists as %q, but of other volumes: use another name", req.GetName(), g.ID)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, failed(err)
	case err != nil:
		if err := d.createGroup(ctx, g, sources); err != nil {
			return nil, failed(err)
		}
	}
	shown, err := d.groupSnapshot(g.ID, nil)
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: shown}, err
}

func (d groups) createGroup(ctx context.Context, g store.Group, sources []string) error {
	var volumes []store.Volume
	var snaps []store.Snapshot
	for n, id := range sources {
		v, err := d.presentVolume(id)
		if err != nil {
			return err
		}
		volumes = append(volumes, v)
		snaps = append(snaps, store.Snapshot{
			ID: g.Snapshots[n], Name: g.Name, VolumeID: id, CreatedAt: g.CreatedAt,
			FSType: v.FSType, Formatting: v.Formatting, GroupID: g.ID,
		})
	}
	return d.store.CreateGroup(g, snaps, func(images []*os.File) error { return d.copyVolumes(ctx, volumes, images, 0) })
}

// GetVolumeGroupSnapshot returns one group with its snapshots.
func (d groups) GetVolumeGroupSnapshot(_ context.Context,
	req *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if req.GetGroupSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "group_snapshot_id is missing")
	}
	shown, err := d.groupSnapshot(req.GetGroupSnapshotId(), req.GetSnapshotIds())
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: shown}, err
}

// DeleteVolumeGroupSnapshot removes a group with its snapshots.
func (d groups) DeleteVolumeGroupSnapshot(_ context.Context,
	req *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	id := req.GetGroupSnapshotId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "group_snapshot_id is missing")
	}
	end, err := d.flight.begin("DeleteVolumeGroupSnapshot", id)
	if err != nil {
		return nil, err
	}
	defer end()
	if _, err := d.group(id, req.GetSnapshotIds()); err != nil && status.Code(err) != codes.NotFound {
		return nil, err
	}
	if err := d.store.DeleteGroup(id); err != nil {
		return nil, failed(err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// group looks a group up, which must have the given snapshots, if any are given; the error is a status.
func (d groups) group(id string, members []string) (store.Group, error) {
	g, err := d.store.Group(id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return g, status.Errorf(codes.NotFound, "group snapshot %q does not exist in %s", id, d.store.Dir())
	case err != nil:
		return g, failed(err)
	case len(members) > 0 && !sameSet(members, g.Snapshots):
		return g, status.Errorf(codes.InvalidArgument, "snapshot_ids: group snapshot %q has the snapshots %q, not %q", id,
			g.Snapshots, members)
	}
	return g, nil
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func (d groups) groupSnapshot(id string, members []string) (*csi.VolumeGroupSnapshot, error) {
	g, err := d.group(id, members)
	if err != nil {
		return nil, err
	}
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: id, CreationTime: timestamppb.New(g.CreatedAt), ReadyToUse: true}
	for _, member := range g.Snapshots {
		snap, err := d.snapshot(member)
		if err != nil {
			return nil, err
		}
		out.Snapshots = append(out.Snapshots, csiSnapshot(snap))
	}
	return out, nil
}
