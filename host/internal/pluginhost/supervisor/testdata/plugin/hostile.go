package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// hangs serves a plugin that hangs in one call of its lifecycle, whatever its caller does, and answers the others.
// It does not use the SDK's server.
func hangs(in string) {
	serve(wire.Plugins(register(&hanging{in: in})))
}

// register returns what registers the plugin's only service.
func register(life *hanging) func(*grpc.Server) {
	return func(s *grpc.Server) { pluginv1.RegisterPluginServiceServer(s, life) }
}

// serve serves without the SDK.
func serve(versions map[int]goplugin.PluginSet) {
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: wire.Handshake, VersionedPlugins: versions,
		TLSProvider: func() (*tls.Config, error) {
			bundle, err := os.ReadFile(os.Getenv(wire.EnvTLSBundle))
			if err != nil {
				return nil, err
			}
			return wire.ServerTLS(bundle)
		},
		GRPCServer: goplugin.DefaultGRPCServer,
	})
}

type hanging struct {
	pluginv1.UnimplementedPluginServiceServer
	in string
}

func (h *hanging) enter(call string) {
	if call == h.in {
		select {}
	}
}

func (h *hanging) Info(context.Context, *pluginv1.InfoRequest) (*pluginv1.InfoResponse, error) {
	h.enter("info")
	return &pluginv1.InfoResponse{Name: pluginName(), Version: "1.0.0", Kind: "storage.v1"}, nil
}

func (h *hanging) Validate(context.Context, *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	h.enter("validate")
	return &pluginv1.ValidateResponse{}, nil
}

func (h *hanging) Configure(context.Context, *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	h.enter("configure")
	return &pluginv1.ConfigureResponse{}, nil
}

func (h *hanging) Attend(_ *pluginv1.AttendRequest, stream grpc.ServerStreamingServer[pluginv1.AttendResponse]) error {
	h.enter("attend")
	if err := stream.Send(&pluginv1.AttendResponse{Healthy: true}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (h *hanging) Stop(context.Context, *pluginv1.StopRequest) (*pluginv1.StopResponse, error) {
	h.enter("stop")
	return &pluginv1.StopResponse{}, nil
}

// forge replaces the certificate that the host issued for this process by one of another authority for the same
// name.
func forge() {
	bundle := os.Getenv(wire.EnvTLSBundle)
	issued, err := os.ReadFile(bundle)
	if err != nil {
		panic(err)
	}
	mine, err := wire.ServerTLS(issued)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(mine.Certificates[0].Certificate[0])
	if err != nil {
		panic(err)
	}
	other, err := wire.NewAuthority()
	if err != nil {
		panic(err)
	}
	forged, err := other.Issue(leaf.DNSNames[0])
	if err != nil {
		panic(err)
	}
	path := filepath.Join(filepath.Dir(bundle), "forged.pem")
	if err := os.WriteFile(path, forged, 0o600); err != nil {
		panic(err)
	}
	os.Setenv(wire.EnvTLSBundle, path)
}

// spill writes that many MiB to standard error, as fast as it can.
func spill(mib int) {
	line := strings.Repeat("x", 1023) + "\n"
	piece := []byte(strings.Repeat(line, 1024))
	for range mib {
		if _, err := os.Stderr.Write(piece); err != nil {
			panic(err)
		}
	}
}
