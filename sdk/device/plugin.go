package device

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk"
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

func (s *server) Fingerprint(_ *devicev1.FingerprintRequest,
	stream grpc.ServerStreamingServer[devicev1.FingerprintResponse],
) error {
	return s.impl.Fingerprint(stream.Context(), func(groups []Group) error {
		res := &devicev1.FingerprintResponse{}
		for _, g := range groups {
			res.Groups = append(res.Groups, groupTo(g))
		}
		return stream.Send(res)
	})
}

func (s *server) Reserve(ctx context.Context, req *devicev1.ReserveRequest) (*devicev1.ReserveResponse, error) {
	r, err := s.impl.Reserve(ctx, req.GetIds())
	if err != nil {
		return nil, err
	}
	return reservationTo(r), nil
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
			res := &devicev1.StatsResponse{}
			for _, d := range devices {
				res.Devices = append(res.Devices, statsTo(d))
			}
			return stream.Send(res)
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
			groups := make([]Group, 0, len(res.GetGroups()))
			for _, g := range res.GetGroups() {
				groups = append(groups, groupFrom(g))
			}
			return report(groups)
		})
}

func (c *client) Reserve(ctx context.Context, ids []string) (Reservation, error) {
	res, err := c.rpc.Reserve(ctx, &devicev1.ReserveRequest{Ids: ids})
	return reservationFrom(res), err
}

func (c *client) Stats(ctx context.Context, interval time.Duration, report func(devices []Stats) error) error {
	return receive(ctx, "statistics",
		func(ctx context.Context) (grpc.ServerStreamingClient[devicev1.StatsResponse], error) {
			return c.rpc.Stats(ctx, &devicev1.StatsRequest{IntervalMs: interval.Milliseconds()})
		}, func(res *devicev1.StatsResponse) error {
			devices := make([]Stats, 0, len(res.GetDevices()))
			for _, d := range res.GetDevices() {
				devices = append(devices, statsFrom(d))
			}
			return report(devices)
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

func groupTo(g Group) *devicev1.Group {
	out := &devicev1.Group{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: g.Attributes}
	for _, d := range g.Devices {
		out.Devices = append(out.Devices,
			&devicev1.Device{Id: d.ID, Healthy: d.Healthy, Message: d.Message, Locality: d.Locality})
	}
	return out
}

func groupFrom(g *devicev1.Group) Group {
	out := Group{Vendor: g.GetVendor(), Type: g.GetType(), Name: g.GetName(), Attributes: g.GetAttributes()}
	for _, d := range g.GetDevices() {
		out.Devices = append(out.Devices,
			Instance{ID: d.GetId(), Healthy: d.GetHealthy(), Message: d.GetMessage(), Locality: d.GetLocality()})
	}
	return out
}

func reservationTo(r Reservation) *devicev1.ReserveResponse {
	out := &devicev1.ReserveResponse{Env: r.Env}
	for _, m := range r.Mounts {
		out.Mounts = append(out.Mounts, &devicev1.Mount{HostPath: m.HostPath, TaskPath: m.TaskPath, ReadOnly: m.ReadOnly})
	}
	for _, d := range r.Devices {
		out.Devices = append(out.Devices,
			&devicev1.DeviceNode{HostPath: d.HostPath, TaskPath: d.TaskPath, Permissions: d.Permissions})
	}
	return out
}

func reservationFrom(r *devicev1.ReserveResponse) Reservation {
	out := Reservation{Env: r.GetEnv()}
	for _, m := range r.GetMounts() {
		out.Mounts = append(out.Mounts,
			Mount{HostPath: m.GetHostPath(), TaskPath: m.GetTaskPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range r.GetDevices() {
		out.Devices = append(out.Devices,
			Node{HostPath: d.GetHostPath(), TaskPath: d.GetTaskPath(), Permissions: d.GetPermissions()})
	}
	return out
}

func statsTo(s Stats) *devicev1.DeviceStats {
	out := &devicev1.DeviceStats{Id: s.ID, Summary: s.Summary, Values: s.Values}
	if !s.Time.IsZero() {
		out.Time = timestamppb.New(s.Time)
	}
	return out
}

func statsFrom(s *devicev1.DeviceStats) Stats {
	out := Stats{ID: s.GetId(), Summary: s.GetSummary(), Values: s.GetValues()}
	if s.GetTime() != nil {
		out.Time = s.GetTime().AsTime()
	}
	return out
}
