// A plugin from before version 2 of the wire: it serves version 1 only, without the current SDK.
package main

import (
	"context"
	"crypto/tls"
	"os"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/sdk/wire/wirehost"
)

func main() {
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  wirehost.Handshake,
		VersionedPlugins: map[int]goplugin.PluginSet{1: {wirehost.PluginName: services{}}},
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

type services struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (services) GRPCServer(_ *goplugin.GRPCBroker, srv *grpc.Server) error {
	pluginv1.RegisterPluginServiceServer(srv, &old{})
	storagev1.RegisterStorageServiceServer(srv, &storage{})
	return nil
}

func (services) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	panic("this is a plugin")
}

type storage struct {
	storagev1.UnimplementedStorageServiceServer
}

func (*storage) Attach(context.Context, *storagev1.AttachRequest) (*storagev1.AttachResponse, error) {
	return &storagev1.AttachResponse{PublishContext: map[string]string{"old": "yes"}}, nil
}

type old struct {
	pluginv1.UnimplementedPluginServiceServer
}

func (*old) Info(context.Context, *pluginv1.InfoRequest) (*pluginv1.InfoResponse, error) {
	return &pluginv1.InfoResponse{Name: "old", Version: "0.9.0", Kind: "storage.v1"}, nil
}

func (*old) Validate(context.Context, *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	return &pluginv1.ValidateResponse{}, nil
}

func (*old) Configure(context.Context, *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	return &pluginv1.ConfigureResponse{}, nil
}

func (*old) Attend(_ *pluginv1.AttendRequest, stream grpc.ServerStreamingServer[pluginv1.AttendResponse]) error {
	if err := stream.Send(&pluginv1.AttendResponse{Healthy: true}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (*old) Stop(context.Context, *pluginv1.StopRequest) (*pluginv1.StopResponse, error) {
	os.Exit(0)
	return nil, nil
}
