package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

const (
	firstAttend  = time.Minute      // how long a new process waits for its host
	healthRepeat = 25 * time.Second // the host wants to hear it every 30 s
	finishCalls  = 30 * time.Second // what calls in flight have after Stop
	cutCalls     = 5 * time.Second  // and after SIGTERM
)

// plugin is go-plugin's plugin, and serves PluginService.
type plugin struct {
	goplugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedPluginServiceServer
	log      hclog.Logger
	register func(*grpc.Server) // adds the kind's service
	server   *grpc.Server
	ending   sync.Once

	mu     sync.Mutex
	hosts  int // that attend
	orphan *time.Timer
}

func newPlugin(log hclog.Logger, register func(*grpc.Server)) *plugin {
	return &plugin{log: log, register: register}
}

// GRPCServer adds the plugin's services.
func (p *plugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	pluginv1.RegisterPluginServiceServer(s, p)
	p.register(s)
	return nil
}

// GRPCClient is for hosts.
func (*plugin) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, status.Error(codes.Unimplemented, "this is a plugin")
}

// newServer makes go-plugin's server, which SIGTERM ends, or the lack of a host.
func (p *plugin) newServer(opts []grpc.ServerOption) *grpc.Server {
	p.server = grpc.NewServer(opts...)
	p.orphan = time.AfterFunc(firstAttend, func() { p.attended(0, time.Nanosecond) })
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		p.stop("SIGTERM", cutCalls)
	}()
	return p.server
}

// stop lets the calls in flight finish, for as long as grace, and then makes goplugin.Serve return. GracefulStop waits
// for go-plugin's own streams too: after Stop the host closes its connection, after anything else nobody does.
func (p *plugin) stop(why string, grace time.Duration) {
	p.ending.Do(func() {
		p.log.Info("stopping", "reason", why)
		time.AfterFunc(grace, func() {
			p.log.Warn("the calls and streams that are left are cut", "after", grace)
			p.server.Stop()
		})
		go p.server.GracefulStop()
	})
}

// Info returns what the plugin is.
func (p *plugin) Info(context.Context, *pluginv1.InfoRequest) (*pluginv1.InfoResponse, error) {
	return &pluginv1.InfoResponse{Name: "plain", Version: "0.1.0", Kind: "bootstrap.v1"}, nil
}

// Validate refuses every key: the plugin has no configuration.
func (p *plugin) Validate(_ context.Context, req *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	return &pluginv1.ValidateResponse{}, noKeys(req.GetConfig())
}

// Configure is called before the first call of the kind's service.
func (p *plugin) Configure(_ context.Context, req *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	fmt.Printf("configured with %q\n", req.GetConfig())
	return &pluginv1.ConfigureResponse{}, noKeys(req.GetConfig())
}

func noKeys(config []byte) error {
	var keys map[string]any
	if len(config) > 0 {
		if err := json.Unmarshal(config, &keys); err != nil {
			return status.Errorf(codes.InvalidArgument, "the configuration is not a JSON object: %v", err)
		}
	}
	for key := range keys {
		return status.Errorf(codes.InvalidArgument, "there is no key %q", key)
	}
	return nil
}

// Attend sends the health, and keeps the process running until no host has attended for the orphan timeout.
func (p *plugin) Attend(req *pluginv1.AttendRequest,
	stream grpc.ServerStreamingServer[pluginv1.AttendResponse],
) error {
	p.attended(1, 0)
	defer p.attended(-1, time.Duration(req.GetOrphanTimeoutMs())*time.Millisecond)
	tick := time.NewTicker(healthRepeat)
	defer tick.Stop()
	for {
		if err := stream.Send(&pluginv1.AttendResponse{Healthy: true}); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) attended(hosts int, timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hosts += hosts
	p.orphan.Stop()
	if p.hosts == 0 && timeout > 0 {
		p.orphan = time.AfterFunc(timeout, func() { p.stop("no host attends", cutCalls) })
	}
}

// Stop ends the process.
func (p *plugin) Stop(context.Context, *pluginv1.StopRequest) (*pluginv1.StopResponse, error) {
	p.stop("the host asked for it", finishCalls)
	return &pluginv1.StopResponse{}, nil
}

// loadTLS reads the bundle that the host has made for this process: the plugin's certificate, the host's, and the
// plugin's key. Only this host may make calls.
func loadTLS() (*tls.Config, error) {
	bundle, err := os.ReadFile(os.Getenv("PANNIER_PLUGIN_TLS"))
	if err != nil {
		return nil, err
	}
	own, err := tls.X509KeyPair(bundle, bundle)
	if err != nil {
		return nil, err
	}
	host, err := x509.ParseCertificate(own.Certificate[len(own.Certificate)-1])
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	clients.AddCert(host)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	}, nil
}
