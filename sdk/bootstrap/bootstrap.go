// Package bootstrap is the kind "bootstrap": a plugin that makes the configuration that a service's proxy starts
// with.
package bootstrap

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/convert"
	bootstrapv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/bootstrap/v1"
	"github.com/pannier/pannier/sdk/service"
)

// Kind is the kind's protocol with its version.
const Kind = "bootstrap.v1"

// Bootstrap is the interface of a plugin of the kind "bootstrap". The host calls it through the same interface.
//
// Errors are gRPC status errors. Unavailable, DeadlineExceeded and ResourceExhausted are retried, all others are
// final. An error that is no status reaches the host as Internal.
type Bootstrap interface {
	// Generate waits until the proxy's registration is visible and returns its bootstrap. The same request and
	// registration give the same bytes. FailedPrecondition: the token file cannot be read.
	Generate(ctx context.Context, c service.Consul, req Request) (Result, error)
}

// Result is a bootstrap and the files that it names.
type Result struct {
	// Bootstrap is Envoy's bootstrap v3 as JSON. The proxy is started again, or taken over, when it changes.
	Bootstrap []byte
	// Files are by their names in Request.Dir, whose owner they get, with mode 0400. One that changes is replaced by a
	// rename, and the proxy reads it again.
	Files map[string][]byte
}

// Request asks for one bootstrap.
type Request struct {
	// ProxyID is the proxy's service id in Consul.
	ProxyID string
	// TokenFile holds the token for Consul and for the proxy's xDS stream; empty: none.
	TokenFile string
	// Admin is where the proxy's admin API listens, and Ready its readiness endpoint; the zero Bind: there is none.
	Admin, Ready Bind
	// Dir is the directory, with the token file, in which the proxy finds Result.Files; empty: it finds none, and the
	// bootstrap contains everything.
	Dir string
	// Wait bounds the wait for the registration; 0: 60 s.
	Wait time.Duration
}

// Bind is an address to listen on: with a port, or unix:///PATH without one.
type Bind struct {
	Address string
	Port    int
}

// Socket returns the path of a unix socket; empty: it is none.
func (b Bind) Socket() string {
	path, ok := strings.CutPrefix(b.Address, unixScheme)
	if !ok {
		return ""
	}
	return path
}

// Unix is a socket at a path.
func Unix(path string) Bind { return Bind{Address: unixScheme + path} }

const unixScheme = "unix://"

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

// server adapts an implementation to the protocol.
type server struct {
	bootstrapv1.UnimplementedBootstrapServiceServer
	impl Bootstrap
}

func (s *server) Generate(ctx context.Context, req *bootstrapv1.GenerateRequest) (*bootstrapv1.GenerateResponse,
	error,
) {
	out, err := s.impl.Generate(ctx, service.ConsulFromProto(req.GetConsul()), convert.From[Request](req))
	return convert.To[bootstrapv1.GenerateResponse](out), err
}

// NewClient returns the host's client of a bootstrap plugin. Errors are the plugin's gRPC status errors,
// unchanged.
func NewClient(conn grpc.ClientConnInterface) Bootstrap {
	return &client{rpc: bootstrapv1.NewBootstrapServiceClient(conn)}
}

type client struct {
	rpc bootstrapv1.BootstrapServiceClient
}

func (c *client) Generate(ctx context.Context, consul service.Consul, req Request) (Result, error) {
	m := convert.To[bootstrapv1.GenerateRequest](req)
	m.Consul = consul.ToProto()
	res, err := c.rpc.Generate(ctx, m)
	return convert.From[Result](res), err
}
