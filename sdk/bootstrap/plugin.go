package bootstrap

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk"
	bootstrapv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/bootstrap/v1"
	"github.com/pannier/pannier/sdk/service"
)

// Plugin serves an implementation: sdk.Main(info, bootstrap.Plugin(impl)).
func Plugin(impl Bootstrap) sdk.Plugin {
	return sdk.Plugin{
		Kind: Kind,
		Impl: impl,
		Register: func(r grpc.ServiceRegistrar) {
			bootstrapv1.RegisterBootstrapServiceServer(r, &server{impl: impl})
		},
	}
}

// server is the protocol's side of an implementation.
type server struct {
	bootstrapv1.UnimplementedBootstrapServiceServer
	impl Bootstrap
}

func (s *server) Generate(ctx context.Context, req *bootstrapv1.GenerateRequest) (*bootstrapv1.GenerateResponse, error) {
	out, err := s.impl.Generate(ctx, service.ConsulFromProto(req.GetConsul()), Request{
		ProxyID: req.GetProxyId(), TokenFile: req.GetTokenFile(), Admin: bindFrom(req.GetAdmin()), Ready: bindFrom(req.GetReady()),
		Wait: time.Duration(req.GetWaitMs()) * time.Millisecond,
	})
	return &bootstrapv1.GenerateResponse{Bootstrap: out}, err
}

// NewClient makes the host's side of a bootstrap plugin on a connection to it. Errors
// are the plugin's gRPC status errors as they came.
func NewClient(conn grpc.ClientConnInterface) Bootstrap {
	return &client{rpc: bootstrapv1.NewBootstrapServiceClient(conn)}
}

type client struct {
	rpc bootstrapv1.BootstrapServiceClient
}

func (c *client) Generate(ctx context.Context, consul service.Consul, req Request) ([]byte, error) {
	res, err := c.rpc.Generate(ctx, &bootstrapv1.GenerateRequest{
		Consul: consul.ToProto(), ProxyId: req.ProxyID, TokenFile: req.TokenFile, Admin: bindTo(req.Admin), Ready: bindTo(req.Ready),
		WaitMs: req.Wait.Milliseconds(),
	})
	return res.GetBootstrap(), err
}

func bindTo(b Bind) *bootstrapv1.Bind {
	return &bootstrapv1.Bind{Address: b.Address, Port: int32(b.Port)}
}

func bindFrom(m *bootstrapv1.Bind) Bind {
	return Bind{Address: m.GetAddress(), Port: int(m.GetPort())}
}
