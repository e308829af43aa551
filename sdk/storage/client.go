package storage

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/convert"
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
	stream, err := c.rpc.Fingerprint(streamCtx, message[storagev1.FingerprintRequest](d, opts))
	for err == nil {
		var res *storagev1.FingerprintResponse
		if res, err = stream.Recv(); err != nil {
			break
		}
		if err := report(convert.From[Fingerprint](res)); err != nil {
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

// message returns a request with its driver and the fields of all parts.
func message[M any, P interface {
	*M
	proto.Message
}](d Driver, parts ...any) P {
	return convert.To[M, P](append(parts, struct{ Driver Driver }{d})...)
}

// of is the volume of a call that has no request type.
type of struct{ Volume Volume }

func (c *client) Drivers(ctx context.Context) ([]Driver, error) {
	res, err := c.rpc.Drivers(ctx, &storagev1.DriversRequest{})
	return convert.From[brought](res).Drivers, err
}

func (c *client) ValidateVolume(ctx context.Context, d Driver, req ValidateRequest) ([]string, error) {
	res, err := c.rpc.ValidateVolume(ctx, message[storagev1.ValidateVolumeRequest](d, req))
	return res.GetWarnings(), err
}

func (c *client) Attach(ctx context.Context, d Driver, req AttachRequest) (map[string]string, error) {
	res, err := c.rpc.Attach(ctx, message[storagev1.AttachRequest](d, req))
	return res.GetPublishContext(), err
}

func (c *client) Detach(ctx context.Context, d Driver, v Volume, nodeID string) error {
	_, err := c.rpc.Detach(ctx, message[storagev1.DetachRequest](d, of{v}, struct{ NodeID string }{nodeID}))
	return err
}

func (c *client) Stage(ctx context.Context, d Driver, req StageRequest) error {
	_, err := c.rpc.Stage(ctx, message[storagev1.StageRequest](d, req))
	return err
}

func (c *client) Unstage(ctx context.Context, d Driver, v Volume, stagingPath string) error {
	_, err := c.rpc.Unstage(ctx, message[storagev1.UnstageRequest](d, of{v}, struct{ StagingPath string }{stagingPath}))
	return err
}

func (c *client) Publish(ctx context.Context, d Driver, req PublishRequest) error {
	_, err := c.rpc.Publish(ctx, message[storagev1.PublishRequest](d, req))
	return err
}

func (c *client) Unpublish(ctx context.Context, d Driver, v Volume, targetPath string) error {
	_, err := c.rpc.Unpublish(ctx, message[storagev1.UnpublishRequest](d, of{v}, struct{ TargetPath string }{targetPath}))
	return err
}

func (c *client) Create(ctx context.Context, d Driver, req CreateRequest) (CreateResponse, error) {
	res, err := c.rpc.Create(ctx, message[storagev1.CreateRequest](d, req))
	return convert.From[CreateResponse](res), err
}

func (c *client) Delete(ctx context.Context, d Driver, v Volume) error {
	_, err := c.rpc.Delete(ctx, message[storagev1.DeleteRequest](d, of{v}))
	return err
}

func (c *client) List(ctx context.Context, d Driver, req Page) (ListResponse, error) {
	res, err := c.rpc.List(ctx, message[storagev1.ListRequest](d, req))
	return convert.From[ListResponse](res), err
}

func (c *client) Get(ctx context.Context, d Driver, v Volume) (ListedVolume, error) {
	res, err := c.rpc.Get(ctx, message[storagev1.GetRequest](d, of{v}))
	return convert.From[ListedVolume](res.GetVolume()), err
}

func (c *client) Modify(ctx context.Context, d Driver, req ModifyRequest) error {
	_, err := c.rpc.Modify(ctx, message[storagev1.ModifyRequest](d, req))
	return err
}

func (c *client) Capacity(ctx context.Context, d Driver, req CapacityRequest) (Capacity, error) {
	res, err := c.rpc.Capacity(ctx, message[storagev1.CapacityRequest](d, req))
	return convert.From[Capacity](res), err
}

func (c *client) Expand(ctx context.Context, d Driver, req ExpandRequest) (ExpandResponse, error) {
	res, err := c.rpc.Expand(ctx, message[storagev1.ExpandRequest](d, req))
	return convert.From[ExpandResponse](res), err
}

func (c *client) ExpandNode(ctx context.Context, d Driver, req ExpandNodeRequest) (int64, error) {
	res, err := c.rpc.ExpandNode(ctx, message[storagev1.ExpandNodeRequest](d, req))
	return res.GetCapacity(), err
}

func (c *client) CreateSnapshot(ctx context.Context, d Driver, req CreateSnapshotRequest) (Snapshot, error) {
	res, err := c.rpc.CreateSnapshot(ctx, message[storagev1.CreateSnapshotRequest](d, req))
	s := convert.From[Snapshot](res.GetSnapshot())
	s.Warnings = res.GetWarnings()
	return s, err
}

func (c *client) DeleteSnapshot(ctx context.Context, d Driver, snapshotID string, secrets map[string]string) error {
	req := message[storagev1.DeleteSnapshotRequest](d)
	req.SnapshotId, req.Secrets = snapshotID, secrets
	_, err := c.rpc.DeleteSnapshot(ctx, req)
	return err
}

func (c *client) ListSnapshots(ctx context.Context, d Driver, req ListSnapshotsRequest) (ListSnapshotsResponse, error) {
	res, err := c.rpc.ListSnapshots(ctx, message[storagev1.ListSnapshotsRequest](d, req))
	return convert.From[ListSnapshotsResponse](res), err
}

func (c *client) CreateGroupSnapshot(ctx context.Context, d Driver, req CreateGroupSnapshotRequest) (GroupSnapshot,
	error,
) {
	res, err := c.rpc.CreateGroupSnapshot(ctx, message[storagev1.CreateGroupSnapshotRequest](d, req))
	return convert.From[GroupSnapshot](res.GetGroup()), err
}

func (c *client) DeleteGroupSnapshot(ctx context.Context, d Driver, req GroupSnapshotRequest) error {
	_, err := c.rpc.DeleteGroupSnapshot(ctx, message[storagev1.DeleteGroupSnapshotRequest](d, req))
	return err
}

func (c *client) GetGroupSnapshot(ctx context.Context, d Driver, req GroupSnapshotRequest) (GroupSnapshot, error) {
	res, err := c.rpc.GetGroupSnapshot(ctx, message[storagev1.GetGroupSnapshotRequest](d, req))
	return convert.From[GroupSnapshot](res.GetGroup()), err
}

func (c *client) VolumeStats(ctx context.Context, d Driver, req StatsRequest) (Stats, error) {
	res, err := c.rpc.VolumeStats(ctx, message[storagev1.VolumeStatsRequest](d, req))
	return convert.From[Stats](res), err
}
