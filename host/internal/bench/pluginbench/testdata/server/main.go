// A server to compare a plugin with: the same service in a process of its own, without
// Pannier. `server bare SOCKET` serves plain gRPC on a unix socket; `server` alone is a
// plugin of go-plugin's, as its documentation has it.
package main

import (
	"context"
	"net"
	"os"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

type reader struct{ identity.Identity }

func (reader) Read(context.Context, service.Consul, string) (identity.Token, error) {
	return identity.Token{Accessor: "a"}, nil
}

// plugin is what go-plugin serves.
type plugin struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (plugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	identity.Plugin(reader{}).Register(s)
	return nil
}

func (plugin) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "bare" {
		l, err := net.Listen("unix", os.Args[2])
		if err != nil {
			panic(err)
		}
		s := grpc.NewServer()
		identity.Plugin(reader{}).Register(s)
		panic(s.Serve(l))
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH", MagicCookieValue: "1"},
		Plugins:         goplugin.PluginSet{"identity": plugin{}},
		GRPCServer:      goplugin.DefaultGRPCServer,
	})
}
