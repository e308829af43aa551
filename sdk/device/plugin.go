package device

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/convert"
	devicev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/device/v1"
)

// Plugin serves an implementation: sdk.Main(info, device.Plugin(impl)). It has statistics if impl is also a
// StatsReader.
func Plugin(impl Device) sdk.Plugin {
	return sdk.Plugin{
		Kind: Kind,
		Impl: impl,
		Register: func(r grpc.ServiceRegistrar) {
			devicev1.RegisterDeviceServiceServer(r, &server{impl: impl})
		},
	}
}

// server adapts an implementation to the protocol.
type server struct {
	devicev1.UnimplementedDeviceServiceServer
	impl Device
}

// The messages of the streams.
type (
	fingerprint struct{ Groups []Group }
	statistics  struct{ Devices []Stats }
)

func (s *server) Fingerprint(_ *devicev1.FingerprintRequest,
	stream grpc.ServerStreamingServer[devicev1.FingerprintResponse],
) error {
	return s.impl.Fingerprint(stream.Context(), func(groups []Group) error {
		return stream.Send(convert.To[devicev1.FingerprintResponse](fingerprint{groups}))
	})
}

func (s *server) Reserve(ctx context.Context, req *devicev1.ReserveRequest) (*devicev1.ReserveResponse, error) {
	r, err := s.impl.Reserve(ctx, req.GetIds())
	if err != nil {
		return nil, err
	}
	return convert.To[devicev1.ReserveResponse](r), nil
}

func (s *server) Stats(req *devicev1.StatsRequest, stream grpc.ServerStreamingServer[devicev1.StatsResponse]) error {
	reader, ok := sdk.As[StatsReader](s.impl)
	if !ok {
		return status.Error(codes.Unimplemented, "the plugin has no statistics")
	}
	if req.GetIntervalMs() <= 0 {
		return status.Error(codes.InvalidArgument, "interval_ms must be above 0")
	}
	return reader.Stats(stream.Context(), time.Duration(req.GetIntervalMs())*time.Millisecond,
		func(devices []Stats) error {
			return stream.Send(convert.To[devicev1.StatsResponse](statistics{devices}))
		})
}

// NewClient returns the host's client of a device plugin. Errors are the plugin's gRPC status errors, unchanged; a
// stream that the plugin ends by itself is Unavailable.
func NewClient(conn grpc.ClientConnInterface) Client {
	return &client{rpc: devicev1.NewDeviceServiceClient(conn)}
}

type client struct {
	rpc devicev1.DeviceServiceClient
}

func (c *client) Fingerprint(ctx context.Context, report func(groups []Group) error) error {
	return receive(ctx, "fingerprint",
		func(ctx context.Context) (grpc.ServerStreamingClient[devicev1.FingerprintResponse], error) {
			return c.rpc.Fingerprint(ctx, &devicev1.FingerprintRequest{})
		}, func(res *devicev1.FingerprintResponse) error {
			return report(convert.From[fingerprint](res).Groups)
		})
}

func (c *client) Reserve(ctx context.Context, ids []string) (Reservation, error) {
	res, err := c.rpc.Reserve(ctx, &devicev1.ReserveRequest{Ids: ids})
	return convert.From[Reservation](res), err
}

func (c *client) Stats(ctx context.Context, interval time.Duration, report func(devices []Stats) error) error {
	return receive(ctx, "statistics",
		func(ctx context.Context) (grpc.ServerStreamingClient[devicev1.StatsResponse], error) {
			return c.rpc.Stats(ctx, &devicev1.StatsRequest{IntervalMs: interval.Milliseconds()})
		}, func(res *devicev1.StatsResponse) error {
			return report(convert.From[statistics](res).Devices)
		})
}

// receive passes a stream's messages to take until the stream ends; what names the stream in errors.
func receive[T any](ctx context.Context, what string, open func(context.Context) (grpc.ServerStreamingClient[T], error),
	take func(*T) error,
) error {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when take fails
	stream, err := open(streamCtx)
	for err == nil {
		var res *T
		if res, err = stream.Recv(); err != nil {
			break
		}
		if err := take(res); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF):
		return status.Error(codes.Unavailable, "the plugin ended the "+what)
	default:
		return err
	}
}
