package bridge

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

// CreateSnapshot implements storage.Snapshotter. It is a call on the volume:
// one at a time with all others.
func (b *Bridge) CreateSnapshot(ctx context.Context, d storage.Driver, req storage.CreateSnapshotRequest) (storage.Snapshot, error) {
	op := onVolume(driver.CreateSnapshot, req.Volume)
	op.Object = req.Name
	resp, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.CreateSnapshotResponse, error) {
			if !caps.CreateDeleteSnapshot {
				return nil, lacks("CREATE_DELETE_SNAPSHOT")
			}
			resp, err := c.Controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
				SourceVolumeId: req.Volume.ExternalID,
				Name:           req.Name,
				Secrets:        req.Volume.Secrets,
				Parameters:     req.Parameters,
			})
			if err == nil && resp.GetSnapshot().GetSnapshotId() == "" {
				err = withoutID("CreateSnapshot")
			}
			return resp, err
		})
	if err != nil {
		return storage.Snapshot{}, err
	}
	return snapshot(resp.GetSnapshot()), nil
}

// DeleteSnapshot implements storage.Snapshotter.
func (b *Bridge) DeleteSnapshot(ctx context.Context, d storage.Driver, snapshotID string, secrets map[string]string) error {
	op := driver.Op{
		RPC:      driver.DeleteSnapshot,
		Object:   snapshotID,
		Key:      "snapshot " + snapshotID,
		Redactor: driver.NewRedactor(secrets),
	}
	_, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.DeleteSnapshotResponse, error) {
			if !caps.CreateDeleteSnapshot {
				return nil, lacks("CREATE_DELETE_SNAPSHOT")
			}
			return c.Controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshotID, Secrets: secrets})
		})
	return absentIsDone(err)
}

// ListSnapshots implements storage.Snapshotter. Aborted means that the page's
// token is no longer valid: the caller starts from the beginning.
func (b *Bridge) ListSnapshots(ctx context.Context, d storage.Driver, req storage.ListSnapshotsRequest) (storage.ListSnapshotsResponse, error) {
	op := driver.Op{RPC: driver.ListSnapshots, Redactor: driver.NewRedactor(req.Secrets)}
	resp, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ListSnapshotsResponse, error) {
			if !caps.ListSnapshots {
				return nil, lacks("LIST_SNAPSHOTS")
			}
			return c.Controller.ListSnapshots(ctx, &csi.ListSnapshotsRequest{
				MaxEntries:     maxEntries(req.Page),
				StartingToken:  req.Page.Token,
				SourceVolumeId: req.VolumeExternalID,
				SnapshotId:     req.SnapshotID,
				Secrets:        req.Secrets,
			})
		})
	if err != nil {
		return storage.ListSnapshotsResponse{}, err
	}
	out := storage.ListSnapshotsResponse{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		out.Snapshots = append(out.Snapshots, snapshot(e.GetSnapshot()))
	}
	return out, nil
}

func snapshot(s *csi.Snapshot) storage.Snapshot {
	out := storage.Snapshot{
		ID:               s.GetSnapshotId(),
		VolumeExternalID: s.GetSourceVolumeId(),
		Size:             s.GetSizeBytes(),
		Ready:            s.GetReadyToUse(),
	}
	if t := s.GetCreationTime(); t != nil {
		out.CreatedAt = t.AsTime()
	}
	return out
}
