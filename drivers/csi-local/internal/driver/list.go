package driver

import (
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// ListVolumes lists the volumes in order of their ids, page by page.
func (d controller) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	ids, err := d.store.VolumeIDs()
	if err != nil {
		return nil, failed(err)
	}
	entries, next, err := page(ids, req, store.IsVolumeID, func(id string) (*csi.ListVolumesResponse_Entry, error) {
		v, err := d.registered(id)
		return &csi.ListVolumesResponse_Entry{Volume: d.csiVolume(v)}, err
	})
	return &csi.ListVolumesResponse{Entries: entries, NextToken: next}, err
}

// ControllerGetVolume returns one volume.
func (d controller) ControllerGetVolume(_ context.Context,
	req *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: d.csiVolume(v),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{},
	}, nil
}

// ListSnapshots lists the snapshots in order of their ids, page by page, or
// those of one volume, or one.
func (d controller) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse,
	error,
) {
	ids := []string{req.GetSnapshotId()}
	if req.GetSnapshotId() == "" {
		var err error
		if ids, err = d.store.SnapshotIDs(); err != nil {
			return nil, failed(err)
		}
	}
	entries, next, err := page(ids, req, store.IsSnapshotID, func(id string) (*csi.ListSnapshotsResponse_Entry, error) {
		snap, err := d.store.Snapshot(id)
		if of := req.GetSourceVolumeId(); err == nil && of != "" && snap.VolumeID != of {
			err = store.ErrNotFound // in this list
		}
		return &csi.ListSnapshotsResponse_Entry{Snapshot: csiSnapshot(snap)}, err
	})
	return &csi.ListSnapshotsResponse{Entries: entries, NextToken: next}, err
}

// GetSnapshot returns one snapshot.
func (d controller) GetSnapshot(_ context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if req.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is missing")
	}
	snap, err := d.snapshot(req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: csiSnapshot(snap)}, nil
}

// snapshot looks a snapshot up; the error is a gRPC status.
func (d *Driver) snapshot(id string) (store.Snapshot, error) {
	snap, err := d.store.Snapshot(id)
	if errors.Is(err, store.ErrNotFound) {
		return store.Snapshot{}, status.Errorf(codes.NotFound,
			"snapshot %q does not exist in %s", id, d.store.Dir())
	}
	return snap, failed(err)
}

// page returns one page of what read returns for the ids, which are in ascending order, and reads no more than that; it
// leaves out those that are not found: they were deleted since the ids were read. A token is the last id of the
// previous page, so it stays valid when that item is deleted. max_entries 0 means no limit. The error is a status; a
// token that could not be an id is Aborted, as the specification demands.
func page[T any](ids []string, req interface {
	GetStartingToken() string
	GetMaxEntries() int32
}, isID func(string) bool, read func(id string) (T, error),
) (entries []T, next string, err error) {
	limit, token := int(req.GetMaxEntries()), req.GetStartingToken()
	if limit < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "max_entries is %d: it must not be negative", limit)
	}
	if token != "" {
		if !isID(token) {
			return nil, "", status.Error(codes.Aborted, "starting_token is not one of this driver's: list again without one")
		}
		at, found := slices.BinarySearch(ids, token)
		if found {
			at++
		}
		ids = ids[at:]
	}
	last := ""
	for _, id := range ids {
		entry, err := read(id)
		switch {
		case errors.Is(err, store.ErrNotFound):
			continue
		case err != nil:
			return nil, "", failed(err)
		case limit > 0 && len(entries) == limit:
			return entries, last, nil
		}
		entries, last = append(entries, entry), id
	}
	return entries, "", nil
}
