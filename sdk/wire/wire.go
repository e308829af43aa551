package wire

import (
	"context"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// Versions of the wire: the services that every plugin serves, whatever its kind
// (pannier.plugin.v1), and how a connection to them is made. A host and a plugin take
// the newest that both know. A kind's protocol and a plugin's own release have versions
// of their own.
const (
	// Version1 has PluginService.
	Version1 = 1
	// Version2 has EventService besides.
	Version2 = 2
	// Version is the newest.
	Version = Version2
)

// PluginName is the one plugin of a process in go-plugin's sense.
const PluginName = "pannier"

// Handshake tells a plugin that a pannier host started it, and a host that what
// it started is a pannier plugin. It protects nobody, it only makes for
// understandable errors: TLS is what protects.
var Handshake = goplugin.HandshakeConfig{
	MagicCookieKey:   "PANNIER_PLUGIN",
	MagicCookieValue: "a-pannier-carries-things-at-the-side",
}

// The environment of a plugin's process.
const (
	// EnvTLSBundle is the path of the plugin's TLS bundle, see Authority.Issue.
	EnvTLSBundle = "PANNIER_PLUGIN_TLS"
	// EnvLogLevel is the least severe level that the host wants: trace, debug,
	// info, warn or error.
	EnvLogLevel = "PANNIER_LOG_LEVEL"
	// EnvDebugSocket is where a process of the plugin listens that its author debugs: the
	// calls are passed on to it.
	EnvDebugSocket = "PANNIER_PLUGIN_DEBUG_SOCKET"
)

// The environment of who debugs a plugin.
const (
	// EnvDebug lets a plugin's program wait for calls when no host has started it.
	EnvDebug = "PANNIER_PLUGIN_DEBUG"
	// EnvReattach tells an agent which plugins are debugged: a JSON object of their names
	// and sockets, as such a program prints it.
	EnvReattach = "PANNIER_REATTACH_PLUGINS"
)

// Plugins is what both sides give to go-plugin: one plugin, whose register adds
// all of a process's services of a version. A host passes nil.
func Plugins(register func(version int, srv *grpc.Server) error) map[int]goplugin.PluginSet {
	sets := map[int]goplugin.PluginSet{}
	for version := Version1; version <= Version; version++ {
		sets[version] = goplugin.PluginSet{PluginName: &services{version: version, register: register}}
	}
	return sets
}

// services is gRPC only: go-plugin's older protocol, net/rpc, is refused.
type services struct {
	goplugin.NetRPCUnsupportedPlugin
	version  int
	register func(version int, srv *grpc.Server) error
}

// GRPCServer is go-plugin's GRPCPlugin for a plugin.
func (s *services) GRPCServer(_ *goplugin.GRPCBroker, srv *grpc.Server) error {
	return s.register(s.version, srv)
}

// GRPCClient is go-plugin's GRPCPlugin for a host, which takes the connection.
func (s *services) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
