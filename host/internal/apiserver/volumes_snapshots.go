package apiserver

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// CreateSnapshot takes a snapshot, or returns the volume's existing one of that name. Without a name it gets one that
// contains the time.
func (s volumeService) CreateSnapshot(ctx context.Context,
	req *connect.Request[hostv1.CreateSnapshotRequest],
) (*connect.Response[hostv1.CreateSnapshotResponse], error) {
	ref, err := volumeRef(req.Msg.GetNamespace(), req.Msg.GetVolumeId())
	if err != nil {
		return nil, err
	}
	name := req.Msg.GetName()
	if name == "" {
		name = time.Now().UTC().Format("20060102-150405.000")
	}
	if err := claim.CheckID(name); err != nil {
		return nil, invalid(fmt.Sprintf("snapshot of volume %q", ref), "name", err.Error())
	}
	v, _, err := s.readVolume(ctx, ref)
	if err != nil {
		return nil, err
	}
	taken, err := s.cfg.Controllers.CreateSnapshot(ctx, v, name, req.Msg.GetParameters(), req.Msg.GetSecrets())
	if err != nil {
		return nil, err
	}
	shown := shownSnapshot(v.PluginID, taken)
	shown.Volume = v.String()
	s.snapshotEvent("created", v.PluginID, taken.ID, v.String())
	return connect.NewResponse(&hostv1.CreateSnapshotResponse{Snapshot: shown, Warnings: taken.Warnings}), nil
}

// DeleteSnapshot deletes a snapshot at its driver. It may be repeated.
func (s volumeService) DeleteSnapshot(ctx context.Context,
	req *connect.Request[hostv1.DeleteSnapshotRequest],
) (*connect.Response[hostv1.DeleteSnapshotResponse], error) {
	if err := claim.CheckID(req.Msg.GetPluginId()); err != nil {
		return nil, invalid("delete snapshot", "plugin_id", err.Error())
	}
	if req.Msg.GetSnapshotId() == "" {
		return nil, invalid("delete snapshot", "snapshot_id", "is missing")
	}
	err := s.cfg.Controllers.DeleteSnapshot(ctx, req.Msg.GetPluginId(), req.Msg.GetSnapshotId(), req.Msg.GetSecrets())
	if err == nil {
		s.snapshotEvent("deleted", req.Msg.GetPluginId(), req.Msg.GetSnapshotId(), "")
	}
	return connect.NewResponse(&hostv1.DeleteSnapshotResponse{}), err
}

// ListSnapshots lists a page of a driver's snapshots, with the registered volumes that they were taken of.
func (s volumeService) ListSnapshots(ctx context.Context,
	req *connect.Request[hostv1.ListSnapshotsRequest],
) (*connect.Response[hostv1.ListSnapshotsResponse], error) {
	page, err := driverPage("list snapshots", req.Msg)
	if err != nil {
		return nil, err
	}
	list, err := s.cfg.Controllers.ListSnapshots(ctx, req.Msg.GetPluginId(),
		storage.ListSnapshotsRequest{Page: page, Secrets: req.Msg.GetSecrets()})
	if err != nil {
		return nil, err
	}
	shown, err := s.shownSnapshots(ctx, req.Msg.GetPluginId(), list.Snapshots)
	return connect.NewResponse(&hostv1.ListSnapshotsResponse{Snapshots: shown, NextToken: list.Next}), err
}

// shownSnapshots returns a driver's snapshots with the names of the registered volumes that they were taken of.
func (s *Server) shownSnapshots(ctx context.Context, driver string, snapshots []storage.Snapshot) (
	shown []*hostv1.Snapshot, err error,
) {
	err = s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		for _, snapshot := range snapshots {
			of, err := tx.VolumesByExternalID(driver, snapshot.VolumeExternalID)
			if err != nil {
				return err
			}
			one := shownSnapshot(driver, snapshot)
			if len(of) > 0 {
				one.Volume = of[0].String()
			}
			shown = append(shown, one)
		}
		return nil
	})
	return shown, err
}

func shownSnapshot(driver string, snapshot storage.Snapshot) *hostv1.Snapshot {
	return &hostv1.Snapshot{
		SnapshotId: snapshot.ID, PluginId: driver, ExternalVolumeId: snapshot.VolumeExternalID,
		Size: snapshot.Size, CreatedAt: timestamp(snapshot.CreatedAt), Ready: snapshot.Ready,
		GroupId: snapshot.GroupID,
	}
}
