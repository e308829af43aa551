// Package wirehost is what a host passes to go-plugin to start plugins and to reattach to them. It is not part of wire,
// so that plugins have nothing of go-plugin in their programs (sdk/DESIGN.md).
package wirehost

import (
	"context"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/wire"
)

// PluginName is go-plugin's name for the one plugin that a process serves.
const PluginName = "pannier"

// Handshake is the cookie that a plugin looks for.
var Handshake = goplugin.HandshakeConfig{MagicCookieKey: wire.EnvCookie, MagicCookieValue: wire.Cookie}

// Plugins has one plugin in each version. Its client is the connection. register, which a plugin that go-plugin serves
// needs, adds all services of a process in a version.
func Plugins(register func(version int, srv *grpc.Server) error) map[int]goplugin.PluginSet {
	sets := map[int]goplugin.PluginSet{}
	for version := 1; version <= wire.Version; version++ {
		sets[version] = goplugin.PluginSet{PluginName: &services{version: version, register: register}}
	}
	return sets
}

// services supports gRPC only: go-plugin's older protocol, net/rpc, is refused.
type services struct {
	goplugin.NetRPCUnsupportedPlugin
	version  int
	register func(version int, srv *grpc.Server) error
}

// GRPCServer implements go-plugin's GRPCPlugin for a plugin.
func (s *services) GRPCServer(_ *goplugin.GRPCBroker, srv *grpc.Server) error {
	return s.register(s.version, srv)
}

// GRPCClient implements go-plugin's GRPCPlugin for a host, which uses the connection itself.
func (s *services) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
