package peer

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// driverCalls serves the storage protocol to the leader: each call goes to this node's driver of that ID, since only
// this node knows the driver's socket. The guard refuses the calls that servers do not make.
type driverCalls struct {
	grpc.ServiceRegistrar
	calls drivers.Caller
}

// RegisterService implements grpc.ServiceRegistrar.
func (d driverCalls) RegisterService(desc *grpc.ServiceDesc, _ any) {
	forwarding := *desc
	forwarding.Methods, forwarding.Streams = slices.Clone(desc.Methods), nil
	for i, m := range desc.Methods {
		forwarding.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error,
			guard grpc.UnaryServerInterceptor,
		) (any, error) {
			return m.Handler(nil, ctx, decode,
				func(ctx context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
					return guard(ctx, req, info, func(ctx context.Context, req any) (any, error) { return d.forward(ctx, m, req) })
				})
		}
	}
	d.ServiceRegistrar.RegisterService(&forwarding, nil)
}

// forward makes a call at this node's driver.
func (d driverCalls) forward(ctx context.Context, m grpc.MethodDesc, req any) (resp any, err error) {
	of := req.(interface{ GetDriver() *storagev1.Driver }).GetDriver() //nolint:forcetypeassert // of each call in methods
	err = d.calls.CallController(ctx, of.GetId(), 0,
		func(ctx context.Context, c storage.Client, found drivers.Driver) error {
			of.Endpoint = found.Endpoint
			var plugin served
			storage.Plugin(c).Register(&plugin)
			resp, err = m.Handler(plugin.server, ctx, func(in any) error {
				proto.Merge(in.(proto.Message),
					req.(proto.Message)) //nolint:forcetypeassert // both are the call's request
				return nil
			}, nil)
			return err
		})
	if errors.Is(err, drivers.ErrNotFound) {
		// NotFound would be the driver's answer about the volume. Unavailable makes the leader try another node.
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return resp, err
}

// served takes the server of a service.
type served struct{ server any }

// RegisterService implements grpc.ServiceRegistrar.
func (s *served) RegisterService(_ *grpc.ServiceDesc, server any) { s.server = server }
