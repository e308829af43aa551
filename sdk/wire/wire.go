// Package wire is what a host and a plugin must agree on before the first call: the handshake, the version of the
// wire, the environment variables, and TLS.
//
// Plugin authors do not need it: sdk.Main does the plugin's side. A host uses it to start plugins and to reattach
// to them.
//
// Invariants: the host's private key never leaves the host's data directory, so a plugin cannot pass for the host
// towards another plugin. A plugin's certificate names one generation of that plugin, so a host that reattaches
// knows which process it talks to. No key is passed in an environment variable or an argument, only the path of a
// file.
package wire

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// Version is the newest of the wire: the services that every plugin serves, whatever its kind (pannier.plugin.v1), and
// how to connect to them. A host and a plugin use the newest version that both support. A kind's protocol and a
// plugin's own release are versioned separately.
const Version = 1

// PluginName is go-plugin's name for the one plugin that a process serves.
const PluginName = "pannier"

// RelayedKey is in the trailer of a call whose error is not the plugin's own (sdk.Relayed).
const RelayedKey = "pannier-relayed"

// Handshake lets a plugin recognise that a pannier host started it. It only makes errors understandable; TLS gives
// the protection.
var Handshake = goplugin.HandshakeConfig{
	MagicCookieKey:   "PANNIER_PLUGIN",
	MagicCookieValue: "a-pannier-carries-things-at-the-side",
}

// Plugins is what both sides pass to go-plugin: one plugin in each version, whose client is the connection. register
// adds all services of a process; a host passes nil.
func Plugins(register func(*grpc.Server)) map[int]goplugin.PluginSet {
	return map[int]goplugin.PluginSet{Version: {PluginName: &services{register: register}}}
}

// services supports gRPC only: go-plugin's older protocol, net/rpc, is refused.
type services struct {
	goplugin.NetRPCUnsupportedPlugin
	register func(*grpc.Server)
}

// GRPCServer implements go-plugin's GRPCPlugin for a plugin.
func (s *services) GRPCServer(_ *goplugin.GRPCBroker, srv *grpc.Server) error {
	s.register(srv)
	return nil
}

// GRPCClient implements go-plugin's GRPCPlugin for a host, which uses the connection itself.
func (s *services) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// Environment variables of a plugin's process.
const (
	// EnvTLSBundle is the path of the plugin's TLS bundle, see Authority.Issue.
	EnvTLSBundle = "PANNIER_PLUGIN_TLS"
	// EnvLogLevel is the least severe level that the host logs: trace, debug, info, warn or error.
	EnvLogLevel = "PANNIER_LOG_LEVEL"
	// EnvListeners has the names of the listening sockets that the process was started with, separated by commas: the
	// file descriptors from FirstListener on.
	EnvListeners = "PANNIER_PLUGIN_LISTENERS"
	// EnvDebugSocket is the socket of a process of the plugin that its author debugs. Calls are passed on to it.
	EnvDebugSocket = "PANNIER_PLUGIN_DEBUG_SOCKET"
)

// FirstListener is the file descriptor of a process's first listening socket, and MaxListeners bounds their number.
const (
	FirstListener = 3
	MaxListeners  = 16
)

// Environment variables for debugging a plugin.
const (
	// EnvDebug makes a plugin's program wait for calls even if no host has started it.
	EnvDebug = "PANNIER_PLUGIN_DEBUG"
	// EnvReattach tells an agent which plugins are debugged: a JSON object of their names and sockets, as printed
	// by a program that runs with EnvDebug.
	EnvReattach = "PANNIER_REATTACH_PLUGINS"
)

// Bounds of an event, in bytes, and of its number of details. MaxEventDetail bounds each key and each value.
const (
	MaxEventType    = 64
	MaxEventSubject = 256
	MaxEventMessage = 4096
	MaxEventDetail  = 1024
	MaxEventDetails = 32
)

// Bounds of a plugin's metrics: series in all, buckets of a histogram, labels of a metric, and bytes of a label's value
// and of a help text. A plugin keeps to them; the host drops what does not.
const (
	MaxSeries     = 1000
	MaxBuckets    = 32
	MaxLabels     = 8
	MaxLabelValue = 128
	MaxHelp       = 256
)

// MetricName matches the name of a metric or label.
var MetricName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// CutEvent cuts an event's texts to their bounds, at the end of a character, and replaces what is not UTF-8. If
// there are too many details, the first ones by name are kept. A plugin does this so that the event can be sent;
// the host does it too, because it does not trust the plugin.
func CutEvent(e *pluginv1.Event) {
	e.Type, e.Subject = Cut(e.GetType(), MaxEventType), Cut(e.GetSubject(), MaxEventSubject)
	e.Message = Cut(e.GetMessage(), MaxEventMessage)
	if len(e.GetDetails()) == 0 {
		return
	}
	details := make(map[string]string, min(len(e.GetDetails()), MaxEventDetails))
	for _, key := range slices.Sorted(maps.Keys(e.GetDetails())) {
		if len(details) == MaxEventDetails {
			break
		}
		details[Cut(key, MaxEventDetail)] = Cut(e.GetDetails()[key], MaxEventDetail)
	}
	e.Details = details
}

// Bounds of a span: bytes of its name, of each attribute's key and value, and of its error, and the attributes.
const (
	MaxSpanName       = 128
	MaxSpanAttribute  = 256
	MaxSpanAttributes = 32
	MaxSpanError      = 1024
)

// CutSpan cuts a span's texts to their bounds, as CutEvent does, and keeps the first attributes by key.
func CutSpan(s *pluginv1.Span) {
	s.Name, s.Error = Cut(s.GetName(), MaxSpanName), Cut(s.GetError(), MaxSpanError)
	attributes := make(map[string]string, min(len(s.GetAttributes()), MaxSpanAttributes))
	for _, key := range slices.Sorted(maps.Keys(s.GetAttributes())) {
		if len(attributes) == MaxSpanAttributes {
			break
		}
		attributes[Cut(key, MaxSpanAttribute)] = Cut(s.GetAttributes()[key], MaxSpanAttribute)
	}
	s.Attributes = attributes
}

// Cut cuts a text to a size in bytes, at the end of a character, and replaces what is not UTF-8.
func Cut(text string, size int) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}
