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
func (d *Driver) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	ids, err := d.store.VolumeIDs()
	if err != nil {
		return nil, failed(err)
	}
	ids, next, err := page(ids, req.GetStartingToken(), req.GetMaxEntries(), store.IsVolumeID)
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, id := range ids {
		v, err := d.store.Volume(id)
		if errors.Is(err, store.ErrNotFound) {
			continue // deleted since the ids were read
		}
		if err != nil {
			return nil, failed(err)
		}
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: csiVolume(v)})
	}
	return resp, nil
}

// ControllerGetVolume returns one volume.
func (d *Driver) ControllerGetVolume(_ context.Context,
	req *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: csiVolume(v),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{},
	}, nil
}

// ListSnapshots lists the snapshots in order of their ids, page by page, or
// those of one volume, or one.
func (d *Driver) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	snaps, err := d.selectSnapshots(req.GetSnapshotId(), req.GetSourceVolumeId())
	if err != nil {
		return nil, failed(err)
	}
	ids := make([]string, 0, len(snaps))
	byID := make(map[string]store.Snapshot, len(snaps))
	for _, snap := range snaps {
		ids = append(ids, snap.ID)
		byID[snap.ID] = snap
	}
	ids, next, err := page(ids, req.GetStartingToken(), req.GetMaxEntries(), store.IsSnapshotID)
	if err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for _, id := range ids {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: csiSnapshot(byID[id])})
	}
	return resp, nil
}

// selectSnapshots returns the snapshots that match both filters, sorted by id. An empty filter matches everything;
// no match is no error.
func (d *Driver) selectSnapshots(id, volumeID string) ([]store.Snapshot, error) {
	ids := []string{id}
	if id == "" {
		var err error
		if ids, err = d.store.SnapshotIDs(); err != nil {
			return nil, err
		}
	}
	var found []store.Snapshot
	for _, id := range ids {
		snap, err := d.store.Snapshot(id)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if volumeID == "" || snap.VolumeID == volumeID {
			found = append(found, snap)
		}
	}
	return found, nil
}

// snapshot looks a snapshot up; the error is a gRPC status.
func (d *Driver) snapshot(id string) (store.Snapshot, error) {
	snap, err := d.store.Snapshot(id)
	if errors.Is(err, store.ErrNotFound) {
		return store.Snapshot{}, status.Errorf(codes.NotFound,
			"snapshot %q does not exist in %s: check the id with ListSnapshots", id, d.store.Dir())
	}
	return snap, failed(err)
}

// page returns one page of ids, which are in ascending order. A token is the last id of the previous page, so it
// stays valid when that item is deleted. limit 0 means no limit. The error is a status; a token that could not be
// an id is Aborted, as the specification demands.
func page(ids []string, token string, limit int32, isID func(string) bool) (entries []string, next string, err error) {
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
	if limit > 0 && len(ids) > int(limit) {
		return ids[:limit], ids[limit-1], nil
	}
	return ids, "", nil
}
