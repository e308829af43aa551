package storage

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/convert"
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

// forDriver is a request: each names its driver.
type forDriver interface {
	proto.Message
	GetDriver() *storagev1.Driver
}

func driver(m forDriver) Driver { return convert.From[Driver](m.GetDriver()) }

func volume(m interface{ GetVolume() *storagev1.Volume }) Volume {
	return convert.From[Volume](m.GetVolume())
}

// serve calls a method that takes and returns a struct, for a message.
func serve[M any, I, Req, Res any, P interface {
	*M
	proto.Message
}](ctx context.Context, s *server, m forDriver, what string,
	method func(I, context.Context, Driver, Req) (Res, error),
) (P, error) {
	impl, err := optional[I](s.impl, what)
	if err != nil {
		return nil, err
	}
	res, err := method(impl, ctx, driver(m), convert.From[Req](m))
	return convert.To[M, P](res), err
}

// perform is serve for a method that returns nothing.
func perform[M any, I, Req any](ctx context.Context, s *server, m forDriver, what string,
	method func(I, context.Context, Driver, Req) error,
) (*M, error) {
	impl, err := optional[I](s.impl, what)
	if err != nil {
		return nil, err
	}
	return new(M), method(impl, ctx, driver(m), convert.From[Req](m))
}

// Answers whose message has a struct as a field.
type (
	brought struct{ Drivers []Driver }
	grouped struct{ Group GroupSnapshot }
)

func (s *server) Fingerprint(req *storagev1.FingerprintRequest,
	stream grpc.ServerStreamingServer[storagev1.FingerprintResponse],
) error {
	opts := convert.From[FingerprintOptions](req)
	return s.impl.Fingerprint(stream.Context(), driver(req), opts, func(f Fingerprint) error {
		if err := claims(s.impl, f); err != nil {
			return err
		}
		return stream.Send(convert.To[storagev1.FingerprintResponse](f))
	})
}

func (s *server) Drivers(ctx context.Context, _ *storagev1.DriversRequest) (*storagev1.DriversResponse, error) {
	b, err := optional[DriverBringer](s.impl, "bring drivers")
	if err != nil {
		return nil, err
	}
	all, err := b.Drivers(ctx)
	return convert.To[storagev1.DriversResponse](brought{all}), err
}

func (s *server) ValidateVolume(ctx context.Context,
	m *storagev1.ValidateVolumeRequest,
) (*storagev1.ValidateVolumeResponse, error) {
	warnings, err := s.impl.ValidateVolume(ctx, driver(m), convert.From[ValidateRequest](m))
	return &storagev1.ValidateVolumeResponse{Warnings: warnings}, err
}

func (s *server) Attach(ctx context.Context, m *storagev1.AttachRequest) (*storagev1.AttachResponse, error) {
	impl, err := optional[Attacher](s.impl, "attach volumes")
	if err != nil {
		return nil, err
	}
	published, err := impl.Attach(ctx, driver(m), convert.From[AttachRequest](m))
	return &storagev1.AttachResponse{PublishContext: published}, err
}

func (s *server) Detach(ctx context.Context, m *storagev1.DetachRequest) (*storagev1.DetachResponse, error) {
	impl, err := optional[Attacher](s.impl, "detach volumes")
	if err != nil {
		return nil, err
	}
	return &storagev1.DetachResponse{}, impl.Detach(ctx, driver(m), volume(m), m.GetNodeId())
}

func (s *server) Stage(ctx context.Context, m *storagev1.StageRequest) (*storagev1.StageResponse, error) {
	return perform[storagev1.StageResponse](ctx, s, m, "stage volumes", Stager.Stage)
}

func (s *server) Unstage(ctx context.Context, m *storagev1.UnstageRequest) (*storagev1.UnstageResponse, error) {
	impl, err := optional[Stager](s.impl, "unstage volumes")
	if err != nil {
		return nil, err
	}
	return &storagev1.UnstageResponse{}, impl.Unstage(ctx, driver(m), volume(m), m.GetStagingPath())
}

func (s *server) Publish(ctx context.Context, m *storagev1.PublishRequest) (*storagev1.PublishResponse, error) {
	return perform[storagev1.PublishResponse](ctx, s, m, "publish volumes", Storage.Publish)
}

func (s *server) Unpublish(ctx context.Context, m *storagev1.UnpublishRequest) (*storagev1.UnpublishResponse, error) {
	return &storagev1.UnpublishResponse{}, s.impl.Unpublish(ctx, driver(m), volume(m), m.GetTargetPath())
}

func (s *server) Create(ctx context.Context, m *storagev1.CreateRequest) (*storagev1.CreateResponse, error) {
	return serve[storagev1.CreateResponse](ctx, s, m, "create volumes", Provisioner.Create)
}

func (s *server) Delete(ctx context.Context, m *storagev1.DeleteRequest) (*storagev1.DeleteResponse, error) {
	impl, err := optional[Provisioner](s.impl, "delete volumes")
	if err != nil {
		return nil, err
	}
	return &storagev1.DeleteResponse{}, impl.Delete(ctx, driver(m), volume(m))
}

func (s *server) List(ctx context.Context, m *storagev1.ListRequest) (*storagev1.ListResponse, error) {
	return serve[storagev1.ListResponse](ctx, s, m, "list volumes", Provisioner.List)
}

func (s *server) Get(ctx context.Context, m *storagev1.GetRequest) (*storagev1.GetResponse, error) {
	impl, err := optional[VolumeReader](s.impl, "read a volume")
	if err != nil {
		return nil, err
	}
	v, err := impl.Get(ctx, driver(m), volume(m))
	return convert.To[storagev1.GetResponse](struct{ Volume ListedVolume }{v}), err
}

func (s *server) Modify(ctx context.Context, m *storagev1.ModifyRequest) (*storagev1.ModifyResponse, error) {
	return perform[storagev1.ModifyResponse](ctx, s, m, "modify volumes", Modifier.Modify)
}

func (s *server) Capacity(ctx context.Context, m *storagev1.CapacityRequest) (*storagev1.CapacityResponse, error) {
	return serve[storagev1.CapacityResponse](ctx, s, m, "read the capacity", CapacityReader.Capacity)
}

func (s *server) Expand(ctx context.Context, m *storagev1.ExpandRequest) (*storagev1.ExpandResponse, error) {
	return serve[storagev1.ExpandResponse](ctx, s, m, "expand volumes", Expander.Expand)
}

func (s *server) ExpandNode(ctx context.Context,
	m *storagev1.ExpandNodeRequest,
) (*storagev1.ExpandNodeResponse, error) {
	impl, err := optional[Expander](s.impl, "expand volumes")
	if err != nil {
		return nil, err
	}
	capacity, err := impl.ExpandNode(ctx, driver(m), convert.From[ExpandNodeRequest](m))
	return &storagev1.ExpandNodeResponse{Capacity: capacity}, err
}

func (s *server) CreateSnapshot(ctx context.Context,
	m *storagev1.CreateSnapshotRequest,
) (*storagev1.CreateSnapshotResponse, error) {
	impl, err := optional[Snapshotter](s.impl, "make snapshots")
	if err != nil {
		return nil, err
	}
	made, err := impl.CreateSnapshot(ctx, driver(m), convert.From[CreateSnapshotRequest](m))
	res := convert.To[storagev1.CreateSnapshotResponse](struct{ Snapshot Snapshot }{made})
	res.Warnings = made.Warnings
	return res, err
}

func (s *server) DeleteSnapshot(ctx context.Context,
	m *storagev1.DeleteSnapshotRequest,
) (*storagev1.DeleteSnapshotResponse, error) {
	impl, err := optional[Snapshotter](s.impl, "delete snapshots")
	if err != nil {
		return nil, err
	}
	err = impl.DeleteSnapshot(ctx, driver(m), m.GetSnapshotId(), m.GetSecrets())
	return &storagev1.DeleteSnapshotResponse{}, err
}

func (s *server) ListSnapshots(ctx context.Context,
	m *storagev1.ListSnapshotsRequest,
) (*storagev1.ListSnapshotsResponse, error) {
	return serve[storagev1.ListSnapshotsResponse](ctx, s, m, "list snapshots", Snapshotter.ListSnapshots)
}

func (s *server) CreateGroupSnapshot(ctx context.Context,
	m *storagev1.CreateGroupSnapshotRequest,
) (*storagev1.CreateGroupSnapshotResponse, error) {
	impl, err := optional[GroupSnapshotter](s.impl, "make group snapshots")
	if err != nil {
		return nil, err
	}
	g, err := impl.CreateGroupSnapshot(ctx, driver(m), convert.From[CreateGroupSnapshotRequest](m))
	return convert.To[storagev1.CreateGroupSnapshotResponse](grouped{g}), err
}

func (s *server) DeleteGroupSnapshot(ctx context.Context,
	m *storagev1.DeleteGroupSnapshotRequest,
) (*storagev1.DeleteGroupSnapshotResponse, error) {
	return perform[storagev1.DeleteGroupSnapshotResponse](ctx, s, m, "delete group snapshots", GroupSnapshotter.DeleteGroupSnapshot)
}

func (s *server) GetGroupSnapshot(ctx context.Context,
	m *storagev1.GetGroupSnapshotRequest,
) (*storagev1.GetGroupSnapshotResponse, error) {
	impl, err := optional[GroupSnapshotter](s.impl, "read group snapshots")
	if err != nil {
		return nil, err
	}
	g, err := impl.GetGroupSnapshot(ctx, driver(m), convert.From[GroupSnapshotRequest](m))
	return convert.To[storagev1.GetGroupSnapshotResponse](grouped{g}), err
}

func (s *server) VolumeStats(ctx context.Context,
	m *storagev1.VolumeStatsRequest,
) (*storagev1.VolumeStatsResponse, error) {
	return serve[storagev1.VolumeStatsResponse](ctx, s, m, "read a volume's usage", StatsReader.VolumeStats)
}
