package storage

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// NewClient returns the host's client of a storage plugin. Errors are the plugin's gRPC status errors, unchanged.
func NewClient(conn grpc.ClientConnInterface) Client {
	return &client{rpc: storagev1.NewStorageServiceClient(conn)}
}

type client struct {
	rpc storagev1.StorageServiceClient
}

func (c *client) Fingerprint(ctx context.Context, d Driver, opts FingerprintOptions,
	report func(Fingerprint) error,
) error {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when report fails
	stream, err := c.rpc.Fingerprint(streamCtx, &storagev1.FingerprintRequest{
		Driver:         driverTo(d),
		IntervalMs:     milliseconds(opts.Interval),
		ProbeTimeoutMs: milliseconds(opts.ProbeTimeout),
	})
	for err == nil {
		var res *storagev1.FingerprintResponse
		if res, err = stream.Recv(); err != nil {
			break
		}
		if err := report(fingerprintFrom(res)); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF):
		return status.Error(codes.Unavailable, "the plugin ended the fingerprint of driver \""+d.ID+"\"")
	default:
		return err
	}
}

func (c *client) Drivers(ctx context.Context) ([]Driver, error) {
	res, err := c.rpc.Drivers(ctx, &storagev1.DriversRequest{})
	return each(res.GetDrivers(), driverFrom), err
}

func (c *client) ValidateVolume(ctx context.Context, d Driver, req ValidateRequest) ([]string, error) {
	res, err := c.rpc.ValidateVolume(ctx, &storagev1.ValidateVolumeRequest{
		Driver:       driverTo(d),
		Volume:       volumeTo(req.Volume),
		Capabilities: each(req.Capabilities, capabilityTo),
		Parameters:   req.Parameters,
	})
	return res.GetWarnings(), err
}

func (c *client) Attach(ctx context.Context, d Driver, req AttachRequest) (map[string]string, error) {
	res, err := c.rpc.Attach(ctx, &storagev1.AttachRequest{
		Driver:   driverTo(d),
		Volume:   volumeTo(req.Volume),
		NodeId:   req.NodeID,
		ReadOnly: req.ReadOnly,
	})
	return res.GetPublishContext(), err
}

func (c *client) Detach(ctx context.Context, d Driver, v Volume, nodeID string) error {
	_, err := c.rpc.Detach(ctx, &storagev1.DetachRequest{Driver: driverTo(d), Volume: volumeTo(v), NodeId: nodeID})
	return err
}

func (c *client) Stage(ctx context.Context, d Driver, req StageRequest) error {
	_, err := c.rpc.Stage(ctx, &storagev1.StageRequest{
		Driver:         driverTo(d),
		Volume:         volumeTo(req.Volume),
		PublishContext: req.PublishContext,
		StagingPath:    req.StagingPath,
	})
	return err
}

func (c *client) Unstage(ctx context.Context, d Driver, v Volume, stagingPath string) error {
	_, err := c.rpc.Unstage(ctx, &storagev1.UnstageRequest{
		Driver: driverTo(d), Volume: volumeTo(v),
		StagingPath: stagingPath,
	})
	return err
}

func (c *client) Publish(ctx context.Context, d Driver, req PublishRequest) error {
	_, err := c.rpc.Publish(ctx, &storagev1.PublishRequest{
		Driver:         driverTo(d),
		Volume:         volumeTo(req.Volume),
		PublishContext: req.PublishContext,
		StagingPath:    req.StagingPath,
		TargetPath:     req.TargetPath,
		ReadOnly:       req.ReadOnly,
	})
	return err
}

func (c *client) Unpublish(ctx context.Context, d Driver, v Volume, targetPath string) error {
	_, err := c.rpc.Unpublish(ctx,
		&storagev1.UnpublishRequest{Driver: driverTo(d), Volume: volumeTo(v), TargetPath: targetPath})
	return err
}

func (c *client) Create(ctx context.Context, d Driver, req CreateRequest) (CreateResponse, error) {
	res, err := c.rpc.Create(ctx, &storagev1.CreateRequest{
		Driver:       driverTo(d),
		Name:         req.Name,
		CapacityMin:  req.CapacityMin,
		CapacityMax:  req.CapacityMax,
		Capabilities: each(req.Capabilities, capabilityTo),
		Parameters:   req.Parameters,
		Secrets:      req.Secrets,
		SnapshotId:   req.SnapshotID,
		CloneId:      req.CloneID,
		Topology:     requirementTo(req.Topology),
		Full:         req.Full,
	})
	return CreateResponse{
		ExternalID:         res.GetExternalId(),
		Capacity:           res.GetCapacity(),
		Context:            res.GetContext(),
		AccessibleTopology: each(res.GetAccessibleTopology(), topologyFrom),
	}, err
}

func (c *client) Delete(ctx context.Context, d Driver, v Volume) error {
	_, err := c.rpc.Delete(ctx, &storagev1.DeleteRequest{Driver: driverTo(d), Volume: volumeTo(v)})
	return err
}

func (c *client) List(ctx context.Context, d Driver, page Page) (ListResponse, error) {
	res, err := c.rpc.List(ctx, &storagev1.ListRequest{
		Driver:        driverTo(d),
		MaxEntries:    entries(page.Max),
		StartingToken: page.Token,
	})
	return ListResponse{Volumes: each(res.GetVolumes(), listedFrom), Next: res.GetNextToken()}, err
}

func (c *client) Get(ctx context.Context, d Driver, v Volume) (ListedVolume, error) {
	res, err := c.rpc.Get(ctx, &storagev1.GetRequest{Driver: driverTo(d), Volume: volumeTo(v)})
	return listedFrom(res.GetVolume()), err
}

func (c *client) Modify(ctx context.Context, d Driver, req ModifyRequest) error {
	_, err := c.rpc.Modify(ctx, &storagev1.ModifyRequest{
		Driver: driverTo(d), Volume: volumeTo(req.Volume), Parameters: req.Parameters,
	})
	return err
}

func (c *client) Capacity(ctx context.Context, d Driver, req CapacityRequest) (Capacity, error) {
	msg := &storagev1.CapacityRequest{
		Driver:       driverTo(d),
		Capabilities: each(req.Capabilities, capabilityTo),
		Parameters:   req.Parameters,
	}
	if len(req.Topology) > 0 {
		msg.Topology = topologyTo(req.Topology)
	}
	res, err := c.rpc.Capacity(ctx, msg)
	return Capacity{
		Available: res.GetAvailable(), MaximumVolume: res.GetMaximumVolume(), MinimumVolume: res.GetMinimumVolume(),
	}, err
}

func (c *client) Expand(ctx context.Context, d Driver, req ExpandRequest) (ExpandResponse, error) {
	res, err := c.rpc.Expand(ctx, &storagev1.ExpandRequest{
		Driver:      driverTo(d),
		Volume:      volumeTo(req.Volume),
		CapacityMin: req.CapacityMin,
		CapacityMax: req.CapacityMax,
	})
	return ExpandResponse{Capacity: res.GetCapacity(), NodeExpansionRequired: res.GetNodeExpansionRequired()}, err
}

func (c *client) ExpandNode(ctx context.Context, d Driver, req ExpandNodeRequest) (int64, error) {
	res, err := c.rpc.ExpandNode(ctx, &storagev1.ExpandNodeRequest{
		Driver:      driverTo(d),
		Volume:      volumeTo(req.Volume),
		CapacityMin: req.CapacityMin,
		CapacityMax: req.CapacityMax,
		VolumePath:  req.VolumePath,
		StagingPath: req.StagingPath,
	})
	return res.GetCapacity(), err
}

func (c *client) CreateSnapshot(ctx context.Context, d Driver, req CreateSnapshotRequest) (Snapshot, error) {
	res, err := c.rpc.CreateSnapshot(ctx, &storagev1.CreateSnapshotRequest{
		Driver:     driverTo(d),
		Name:       req.Name,
		Volume:     volumeTo(req.Volume),
		Parameters: req.Parameters,
	})
	s := snapshotFrom(res.GetSnapshot())
	s.Warnings = res.GetWarnings()
	return s, err
}

func (c *client) DeleteSnapshot(ctx context.Context, d Driver, snapshotID string, secrets map[string]string) error {
	_, err := c.rpc.DeleteSnapshot(ctx,
		&storagev1.DeleteSnapshotRequest{Driver: driverTo(d), SnapshotId: snapshotID, Secrets: secrets})
	return err
}

func (c *client) ListSnapshots(ctx context.Context, d Driver, req ListSnapshotsRequest) (ListSnapshotsResponse, error) {
	res, err := c.rpc.ListSnapshots(ctx, &storagev1.ListSnapshotsRequest{
		Driver:           driverTo(d),
		MaxEntries:       entries(req.Page.Max),
		StartingToken:    req.Page.Token,
		VolumeExternalId: req.VolumeExternalID,
		SnapshotId:       req.SnapshotID,
		Secrets:          req.Secrets,
	})
	return ListSnapshotsResponse{Snapshots: each(res.GetSnapshots(), snapshotFrom), Next: res.GetNextToken()}, err
}

func (c *client) CreateGroupSnapshot(ctx context.Context, d Driver, req CreateGroupSnapshotRequest) (GroupSnapshot,
	error,
) {
	res, err := c.rpc.CreateGroupSnapshot(ctx, &storagev1.CreateGroupSnapshotRequest{
		Driver:            driverTo(d),
		Name:              req.Name,
		VolumeExternalIds: req.VolumeExternalIDs,
		Parameters:        req.Parameters,
		Secrets:           req.Secrets,
	})
	return groupFrom(res.GetGroup()), err
}

func (c *client) DeleteGroupSnapshot(ctx context.Context, d Driver, req GroupSnapshotRequest) error {
	_, err := c.rpc.DeleteGroupSnapshot(ctx, &storagev1.DeleteGroupSnapshotRequest{
		Driver: driverTo(d), GroupId: req.ID, SnapshotIds: req.SnapshotIDs, Secrets: req.Secrets,
	})
	return err
}

func (c *client) GetGroupSnapshot(ctx context.Context, d Driver, req GroupSnapshotRequest) (GroupSnapshot, error) {
	res, err := c.rpc.GetGroupSnapshot(ctx, &storagev1.GetGroupSnapshotRequest{
		Driver: driverTo(d), GroupId: req.ID, SnapshotIds: req.SnapshotIDs, Secrets: req.Secrets,
	})
	return groupFrom(res.GetGroup()), err
}

func (c *client) VolumeStats(ctx context.Context, d Driver, req StatsRequest) (Stats, error) {
	res, err := c.rpc.VolumeStats(ctx, &storagev1.VolumeStatsRequest{
		Driver:      driverTo(d),
		Volume:      volumeTo(req.Volume),
		VolumePath:  req.VolumePath,
		StagingPath: req.StagingPath,
	})
	return Stats{Usage: each(res.GetUsage(), usageFrom), Condition: conditionFrom(res.GetCondition())}, err
}
