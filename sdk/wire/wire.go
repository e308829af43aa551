// Package wire is what a host and a plugin must agree on before the first call:
// the handshake, the version of the wire, the names in the environment, and TLS.
//
// Plugin authors need nothing of it: sdk.Main does their side. A host imports
// it to start plugins and to connect to them again.
//
// Three things must stay true. The key that the host proves itself with never
// leaves the host's data directory: a plugin can therefore not pass for the host
// towards another plugin. A plugin's certificate names one generation of that
// plugin, so a host that connects again knows which process it talks to. And no
// key is passed in an environment or an argument, only the path of a file.
package wire

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
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

// What an event may hold, in bytes; of MaxEventDetails keys and their values each.
const (
	MaxEventType    = 64
	MaxEventSubject = 256
	MaxEventMessage = 4096
	MaxEventDetail  = 1024
	MaxEventDetails = 32
)

// CutEvent cuts the texts of an event to what one may hold, at the end of a character,
// and replaces what is not UTF-8. Of too many details the first by name are kept. A
// plugin does it so that the event can be sent, and the host because it need not
// believe that the plugin did.
func CutEvent(e *pluginv1.Event) {
	e.Type, e.Subject = cut(e.GetType(), MaxEventType), cut(e.GetSubject(), MaxEventSubject)
	e.Message = cut(e.GetMessage(), MaxEventMessage)
	if len(e.GetDetails()) == 0 {
		return
	}
	details := make(map[string]string, min(len(e.GetDetails()), MaxEventDetails))
	for _, key := range slices.Sorted(maps.Keys(e.GetDetails())) {
		if len(details) == MaxEventDetails {
			break
		}
		details[cut(key, MaxEventDetail)] = cut(e.GetDetails()[key], MaxEventDetail)
	}
	e.Details = details
}

func cut(text string, size int) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}
