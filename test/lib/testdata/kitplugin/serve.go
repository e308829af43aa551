package main

import (
	"context"
	"crypto/tls"
	"os"
	"sync"
	"sync/atomic"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// serve serves a plugin without sdk.Main, which would not misbehave like this.
func serve(mode string, info sdk.Info, kind sdk.Plugin) {
	if os.Getenv(wire.Handshake.MagicCookieKey) == "" {
		os.Stderr.WriteString("not by hand\n")
		os.Exit(1)
	}
	p := &ownService{mode: mode, info: info, kind: kind}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: wire.Handshake,
		VersionedPlugins: wire.Plugins(func(s *grpc.Server) {
			pluginv1.RegisterPluginServiceServer(s, p)
			kind.Register(s)
		}),
		TLSProvider: func() (*tls.Config, error) {
			bundle, err := os.ReadFile(os.Getenv(wire.EnvTLSBundle))
			if err != nil {
				return nil, err
			}
			config, err := wire.ServerTLS(bundle)
			if err == nil && mode == "open-to-all" {
				config.ClientAuth = tls.NoClientCert
			}
			return config, err
		},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.StatsHandler(&connections{p}), grpc.UnaryInterceptor(p.call))...)
		},
	})
}

// connections ends the process of the mode "one-host" with its first connection, unless it is stopped.
type connections struct{ p *ownService }

func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ends := s.(*stats.ConnEnd); ends && c.p.mode == "one-host" && !c.p.stopped.Load() {
		os.Exit(0)
	}
}

func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (c *connections) HandleRPC(context.Context, stats.RPCStats)                       {}

type ownService struct {
	pluginv1.UnimplementedPluginServiceServer
	mode string
	info sdk.Info
	kind sdk.Plugin

	stopped atomic.Bool
	calls   sync.WaitGroup // in flight
	mu      sync.Mutex
	asked   int
}

func (p *ownService) Info(context.Context, *pluginv1.InfoRequest) (*pluginv1.InfoResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	res := &pluginv1.InfoResponse{Name: p.info.Name, Version: p.info.Version, Kind: p.kind.Kind}
	if p.asked++; p.mode == "fickle" && p.asked > 1 {
		res.Name += "-again"
	}
	return res, nil
}

func (p *ownService) Validate(ctx context.Context, req *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	return &pluginv1.ValidateResponse{}, invalid(p.kind.Impl.(sdk.Validator).Validate(ctx, req.GetConfig()))
}

func (p *ownService) Configure(ctx context.Context, req *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse,
	error,
) {
	return &pluginv1.ConfigureResponse{}, invalid(p.kind.Impl.(sdk.Configurer).Configure(ctx, req.GetConfig()))
}

func (p *ownService) Stop(context.Context, *pluginv1.StopRequest) (*pluginv1.StopResponse, error) {
	p.stopped.Store(true)
	time.AfterFunc(10*time.Millisecond, p.exit)
	return &pluginv1.StopResponse{}, nil
}

// call keeps the process running while a call is in flight.
func (p *ownService) call(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error,
) {
	p.calls.Add(1)
	defer p.calls.Done()
	return handler(ctx, req)
}

func (p *ownService) exit() {
	if p.mode != "cuts" {
		p.calls.Wait()
		time.Sleep(10 * time.Millisecond) // the answer is on its way
	}
	_ = os.RemoveAll(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
	os.Exit(0)
}

func (p *ownService) Attend(req *pluginv1.AttendRequest,
	stream grpc.ServerStreamingServer[pluginv1.AttendResponse],
) error {
	if p.mode != "mute" {
		if err := stream.Send(&pluginv1.AttendResponse{Healthy: true}); err != nil {
			return err
		}
	}
	timeout := time.Duration(req.GetOrphanTimeoutMs()) * time.Millisecond
	if p.mode == "hasty" {
		time.AfterFunc(timeout, p.exit)
	}
	<-stream.Context().Done()
	if p.mode != "stays" {
		time.AfterFunc(timeout, p.exit)
	}
	return nil
}

func invalid(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.InvalidArgument, err.Error())
}
