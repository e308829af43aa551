package storage

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// Kind is the kind's protocol with its version.
const Kind = "storage.v1"

// Plugin serves an implementation: sdk.Main(info, storage.Plugin(impl)). The plugin also supports those of
// the optional interfaces (Provisioner, Expander, …) that impl implements.
func Plugin(impl Storage) sdk.Plugin {
	return sdk.Plugin{
		Kind: Kind,
		Impl: impl,
		Register: func(r grpc.ServiceRegistrar) {
			storagev1.RegisterStorageServiceServer(r, &server{impl: impl})
		},
	}
}

// server adapts an implementation to the protocol.
type server struct {
	storagev1.UnimplementedStorageServiceServer
	impl Storage
}

// optional returns impl as T, or Unimplemented.
func optional[T any](impl Storage, what string) (T, error) {
	v, ok := sdk.As[T](impl)
	if !ok {
		return v, status.Errorf(codes.Unimplemented, "the plugin cannot %s", what)
	}
	return v, nil
}

func (s *server) Fingerprint(req *storagev1.FingerprintRequest,
	stream grpc.ServerStreamingServer[storagev1.FingerprintResponse],
) error {
	opts := FingerprintOptions{
		Interval:     duration(req.GetIntervalMs()),
		ProbeTimeout: duration(req.GetProbeTimeoutMs()),
	}
	return s.impl.Fingerprint(stream.Context(), driverFrom(req.GetDriver()), opts, func(f Fingerprint) error {
		if err := claims(s.impl, f); err != nil {
			return err
		}
		return stream.Send(fingerprintTo(f))
	})
}

func (s *server) Drivers(ctx context.Context, _ *storagev1.DriversRequest) (*storagev1.DriversResponse, error) {
	b, err := optional[DriverBringer](s.impl, "bring drivers")
	if err != nil {
		return nil, err
	}
	all, err := b.Drivers(ctx)
	return &storagev1.DriversResponse{Drivers: each(all, driverTo)}, err
}

func (s *server) ValidateVolume(ctx context.Context,
	req *storagev1.ValidateVolumeRequest,
) (*storagev1.ValidateVolumeResponse, error) {
	warnings, err := s.impl.ValidateVolume(ctx, driverFrom(req.GetDriver()), ValidateRequest{
		Volume:       volumeFrom(req.GetVolume()),
		Capabilities: each(req.GetCapabilities(), capabilityFrom),
		Parameters:   req.GetParameters(),
	})
	return &storagev1.ValidateVolumeResponse{Warnings: warnings}, err
}

func (s *server) Attach(ctx context.Context, req *storagev1.AttachRequest) (*storagev1.AttachResponse, error) {
	a, err := optional[Attacher](s.impl, "attach volumes")
	if err != nil {
		return nil, err
	}
	publishContext, err := a.Attach(ctx, driverFrom(req.GetDriver()), AttachRequest{
		Volume:   volumeFrom(req.GetVolume()),
		NodeID:   req.GetNodeId(),
		ReadOnly: req.GetReadOnly(),
	})
	return &storagev1.AttachResponse{PublishContext: publishContext}, err
}

func (s *server) Detach(ctx context.Context, req *storagev1.DetachRequest) (*storagev1.DetachResponse, error) {
	a, err := optional[Attacher](s.impl, "detach volumes")
	if err != nil {
		return nil, err
	}
	err = a.Detach(ctx, driverFrom(req.GetDriver()), volumeFrom(req.GetVolume()), req.GetNodeId())
	return &storagev1.DetachResponse{}, err
}

func (s *server) Stage(ctx context.Context, req *storagev1.StageRequest) (*storagev1.StageResponse, error) {
	a, err := optional[Stager](s.impl, "stage volumes")
	if err != nil {
		return nil, err
	}
	err = a.Stage(ctx, driverFrom(req.GetDriver()), StageRequest{
		Volume:         volumeFrom(req.GetVolume()),
		PublishContext: req.GetPublishContext(),
		StagingPath:    req.GetStagingPath(),
	})
	return &storagev1.StageResponse{}, err
}

func (s *server) Unstage(ctx context.Context, req *storagev1.UnstageRequest) (*storagev1.UnstageResponse, error) {
	a, err := optional[Stager](s.impl, "unstage volumes")
	if err != nil {
		return nil, err
	}
	err = a.Unstage(ctx, driverFrom(req.GetDriver()), volumeFrom(req.GetVolume()), req.GetStagingPath())
	return &storagev1.UnstageResponse{}, err
}

func (s *server) Publish(ctx context.Context, req *storagev1.PublishRequest) (*storagev1.PublishResponse, error) {
	err := s.impl.Publish(ctx, driverFrom(req.GetDriver()), PublishRequest{
		Volume:         volumeFrom(req.GetVolume()),
		PublishContext: req.GetPublishContext(),
		StagingPath:    req.GetStagingPath(),
		TargetPath:     req.GetTargetPath(),
		ReadOnly:       req.GetReadOnly(),
	})
	return &storagev1.PublishResponse{}, err
}

func (s *server) Unpublish(ctx context.Context, req *storagev1.UnpublishRequest) (*storagev1.UnpublishResponse, error) {
	err := s.impl.Unpublish(ctx, driverFrom(req.GetDriver()), volumeFrom(req.GetVolume()), req.GetTargetPath())
	return &storagev1.UnpublishResponse{}, err
}

func (s *server) Create(ctx context.Context, req *storagev1.CreateRequest) (*storagev1.CreateResponse, error) {
	p, err := optional[Provisioner](s.impl, "create volumes")
	if err != nil {
		return nil, err
	}
	res, err := p.Create(ctx, driverFrom(req.GetDriver()), CreateRequest{
		Name:         req.GetName(),
		CapacityMin:  req.GetCapacityMin(),
		CapacityMax:  req.GetCapacityMax(),
		Capabilities: each(req.GetCapabilities(), capabilityFrom),
		Parameters:   req.GetParameters(),
		Secrets:      req.GetSecrets(),
		SnapshotID:   req.GetSnapshotId(),
		CloneID:      req.GetCloneId(),
		Topology:     requirementFrom(req.GetTopology()),
		Full:         req.GetFull(),
	})
	return &storagev1.CreateResponse{
		ExternalId:         res.ExternalID,
		Capacity:           res.Capacity,
		Context:            res.Context,
		AccessibleTopology: each(res.AccessibleTopology, topologyTo),
	}, err
}

func (s *server) Delete(ctx context.Context, req *storagev1.DeleteRequest) (*storagev1.DeleteResponse, error) {
	p, err := optional[Provisioner](s.impl, "delete volumes")
	if err != nil {
		return nil, err
	}
	return &storagev1.DeleteResponse{}, p.Delete(ctx, driverFrom(req.GetDriver()), volumeFrom(req.GetVolume()))
}

func (s *server) List(ctx context.Context, req *storagev1.ListRequest) (*storagev1.ListResponse, error) {
	p, err := optional[Provisioner](s.impl, "list volumes")
	if err != nil {
		return nil, err
	}
	page := Page{Max: int(req.GetMaxEntries()), Token: req.GetStartingToken()}
	res, err := p.List(ctx, driverFrom(req.GetDriver()), page)
	return &storagev1.ListResponse{Volumes: each(res.Volumes, listedTo), NextToken: res.Next}, err
}

func (s *server) Get(ctx context.Context, req *storagev1.GetRequest) (*storagev1.GetResponse, error) {
	r, err := optional[VolumeReader](s.impl, "read a volume")
	if err != nil {
		return nil, err
	}
	v, err := r.Get(ctx, driverFrom(req.GetDriver()), volumeFrom(req.GetVolume()))
	return &storagev1.GetResponse{Volume: listedTo(v)}, err
}

func (s *server) Modify(ctx context.Context, req *storagev1.ModifyRequest) (*storagev1.ModifyResponse, error) {
	m, err := optional[Modifier](s.impl, "modify volumes")
	if err != nil {
		return nil, err
	}
	return &storagev1.ModifyResponse{}, m.Modify(ctx, driverFrom(req.GetDriver()), ModifyRequest{
		Volume: volumeFrom(req.GetVolume()), Parameters: req.GetParameters(),
	})
}

func (s *server) Capacity(ctx context.Context, req *storagev1.CapacityRequest) (*storagev1.CapacityResponse, error) {
	c, err := optional[CapacityReader](s.impl, "read the capacity")
	if err != nil {
		return nil, err
	}
	res, err := c.Capacity(ctx, driverFrom(req.GetDriver()), CapacityRequest{
		Capabilities: each(req.GetCapabilities(), capabilityFrom),
		Parameters:   req.GetParameters(),
		Topology:     topologyFrom(req.GetTopology()),
	})
	return &storagev1.CapacityResponse{
		Available: res.Available, MaximumVolume: res.MaximumVolume, MinimumVolume: res.MinimumVolume,
	}, err
}

func (s *server) Expand(ctx context.Context, req *storagev1.ExpandRequest) (*storagev1.ExpandResponse, error) {
	e, err := optional[Expander](s.impl, "expand volumes")
	if err != nil {
		return nil, err
	}
	res, err := e.Expand(ctx, driverFrom(req.GetDriver()), ExpandRequest{
		Volume:      volumeFrom(req.GetVolume()),
		CapacityMin: req.GetCapacityMin(),
		CapacityMax: req.GetCapacityMax(),
	})
	return &storagev1.ExpandResponse{Capacity: res.Capacity, NodeExpansionRequired: res.NodeExpansionRequired}, err
}

func (s *server) ExpandNode(ctx context.Context, req *storagev1.ExpandNodeRequest) (*storagev1.ExpandNodeResponse,
	error,
) {
	e, err := optional[Expander](s.impl, "expand volumes")
	if err != nil {
		return nil, err
	}
	capacity, err := e.ExpandNode(ctx, driverFrom(req.GetDriver()), ExpandNodeRequest{
		Volume:      volumeFrom(req.GetVolume()),
		CapacityMin: req.GetCapacityMin(),
		CapacityMax: req.GetCapacityMax(),
		VolumePath:  req.GetVolumePath(),
		StagingPath: req.GetStagingPath(),
	})
	return &storagev1.ExpandNodeResponse{Capacity: capacity}, err
}

func (s *server) CreateSnapshot(ctx context.Context,
	req *storagev1.CreateSnapshotRequest,
) (*storagev1.CreateSnapshotResponse, error) {
	p, err := optional[Snapshotter](s.impl, "make snapshots")
	if err != nil {
		return nil, err
	}
	snapshot, err := p.CreateSnapshot(ctx, driverFrom(req.GetDriver()), CreateSnapshotRequest{
		Name:       req.GetName(),
		Volume:     volumeFrom(req.GetVolume()),
		Parameters: req.GetParameters(),
	})
	return &storagev1.CreateSnapshotResponse{Snapshot: snapshotTo(snapshot), Warnings: snapshot.Warnings}, err
}

func (s *server) DeleteSnapshot(ctx context.Context,
	req *storagev1.DeleteSnapshotRequest,
) (*storagev1.DeleteSnapshotResponse, error) {
	p, err := optional[Snapshotter](s.impl, "delete snapshots")
	if err != nil {
		return nil, err
	}
	err = p.DeleteSnapshot(ctx, driverFrom(req.GetDriver()), req.GetSnapshotId(), req.GetSecrets())
	return &storagev1.DeleteSnapshotResponse{}, err
}

func (s *server) ListSnapshots(ctx context.Context,
	req *storagev1.ListSnapshotsRequest,
) (*storagev1.ListSnapshotsResponse, error) {
	p, err := optional[Snapshotter](s.impl, "list snapshots")
	if err != nil {
		return nil, err
	}
	res, err := p.ListSnapshots(ctx, driverFrom(req.GetDriver()), ListSnapshotsRequest{
		Page:             Page{Max: int(req.GetMaxEntries()), Token: req.GetStartingToken()},
		VolumeExternalID: req.GetVolumeExternalId(),
		SnapshotID:       req.GetSnapshotId(),
		Secrets:          req.GetSecrets(),
	})
	return &storagev1.ListSnapshotsResponse{Snapshots: each(res.Snapshots, snapshotTo), NextToken: res.Next}, err
}

func (s *server) CreateGroupSnapshot(ctx context.Context,
	req *storagev1.CreateGroupSnapshotRequest,
) (*storagev1.CreateGroupSnapshotResponse, error) {
	p, err := optional[GroupSnapshotter](s.impl, "make group snapshots")
	if err != nil {
		return nil, err
	}
	g, err := p.CreateGroupSnapshot(ctx, driverFrom(req.GetDriver()), CreateGroupSnapshotRequest{
		Name:              req.GetName(),
		VolumeExternalIDs: req.GetVolumeExternalIds(),
		Parameters:        req.GetParameters(),
		Secrets:           req.GetSecrets(),
	})
	return &storagev1.CreateGroupSnapshotResponse{Group: groupTo(g)}, err
}

func (s *server) DeleteGroupSnapshot(ctx context.Context,
	req *storagev1.DeleteGroupSnapshotRequest,
) (*storagev1.DeleteGroupSnapshotResponse, error) {
	p, err := optional[GroupSnapshotter](s.impl, "delete group snapshots")
	if err != nil {
		return nil, err
	}
	return &storagev1.DeleteGroupSnapshotResponse{}, p.DeleteGroupSnapshot(ctx, driverFrom(req.GetDriver()),
		GroupSnapshotRequest{ID: req.GetGroupId(), SnapshotIDs: req.GetSnapshotIds(), Secrets: req.GetSecrets()})
}

func (s *server) GetGroupSnapshot(ctx context.Context,
	req *storagev1.GetGroupSnapshotRequest,
) (*storagev1.GetGroupSnapshotResponse, error) {
	p, err := optional[GroupSnapshotter](s.impl, "read group snapshots")
	if err != nil {
		return nil, err
	}
	g, err := p.GetGroupSnapshot(ctx, driverFrom(req.GetDriver()),
		GroupSnapshotRequest{ID: req.GetGroupId(), SnapshotIDs: req.GetSnapshotIds(), Secrets: req.GetSecrets()})
	return &storagev1.GetGroupSnapshotResponse{Group: groupTo(g)}, err
}

func (s *server) VolumeStats(ctx context.Context, req *storagev1.VolumeStatsRequest) (*storagev1.VolumeStatsResponse,
	error,
) {
	p, err := optional[StatsReader](s.impl, "read a volume's usage")
	if err != nil {
		return nil, err
	}
	stats, err := p.VolumeStats(ctx, driverFrom(req.GetDriver()), StatsRequest{
		Volume:      volumeFrom(req.GetVolume()),
		VolumePath:  req.GetVolumePath(),
		StagingPath: req.GetStagingPath(),
	})
	return &storagev1.VolumeStatsResponse{Usage: each(stats.Usage, usageTo), Condition: conditionTo(stats.Condition)}, err
}

func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
