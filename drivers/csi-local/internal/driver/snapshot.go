package driver

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// CreateSnapshot copies a volume's image. The copy is consistent even if the volume is mounted (copy.go).
func (d controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse,
	error,
) {
	source := req.GetSourceVolumeId()
	if err := checkName(req.GetName()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "name: %v", err)
	}
	if source == "" {
		return nil, status.Error(codes.InvalidArgument, "source_volume_id is missing")
	}
	for key := range req.GetParameters() {
		return nil, status.Errorf(codes.InvalidArgument, "parameter %q is unknown: snapshots have none", key)
	}
	id := store.SnapshotID(req.GetName())
	end, err := d.flight.begin("CreateSnapshot", id, source)
	if err != nil {
		return nil, err
	}
	defer end()

	existing, err := d.store.Snapshot(id)
	switch {
	case err == nil && existing.VolumeID != source:
		return nil, status.Errorf(codes.AlreadyExists,
			"snapshot %q exists as %q, but of volume %q: use another name", req.GetName(), id, existing.VolumeID)
	case err == nil:
		return &csi.CreateSnapshotResponse{Snapshot: csiSnapshot(existing)}, nil
	case !errors.Is(err, store.ErrNotFound):
		return nil, failed(err)
	}
	v, err := d.presentVolume(source)
	if err != nil {
		return nil, err
	}
	fill := d.fillFromVolume(v)
	err = d.store.CreateSnapshot(store.Snapshot{
		ID:         id,
		Name:       req.GetName(),
		VolumeID:   v.ID,
		CreatedAt:  time.Now().UTC(),
		FSType:     v.FSType,
		Formatting: v.Formatting,
	}, func(image *os.File) error { return fill(ctx, image) })
	if err != nil {
		return nil, failed(err)
	}
	snap, err := d.snapshot(id)
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: csiSnapshot(snap)}, nil
}

// DeleteSnapshot removes a snapshot. Volumes made from it are independent copies; a volume that is just being made
// keeps the image open until it has finished.
func (d controller) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse,
	error,
) {
	id := req.GetSnapshotId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is missing")
	}
	end, err := d.flight.begin("DeleteSnapshot", id)
	if err != nil {
		return nil, err
	}
	defer end()
	snap, err := d.store.Snapshot(id)
	if err == nil && snap.GroupID != "" {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot %q is part of group snapshot %q: delete that", id,
			snap.GroupID)
	}
	if err := d.store.DeleteSnapshot(id); err != nil {
		return nil, failed(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func csiSnapshot(s store.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId:      s.ID,
		SourceVolumeId:  s.VolumeID,
		SizeBytes:       s.Size,
		CreationTime:    timestamppb.New(s.CreatedAt),
		ReadyToUse:      true,
		GroupSnapshotId: s.GroupID,
	}
}
