// Package goplugin starts a plugin of the kind identity with go-plugin's own client, without Pannier: what Pannier's
// calls of a plugin are compared with. It may be imported by tests only.
package goplugin

import (
	"context"
	"os/exec"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/identity"
)

// Start starts a program that serves the plugin "identity" of go-plugin's, with the handshake of the benchmarks, over
// go-plugin's TLS. It ends with the benchmark.
func Start(b *testing.B, program string) identity.Identity {
	b.Helper()
	cfg := &plugin.ClientConfig{
		Cmd: exec.Command(program), AutoMTLS: true, Logger: hclog.NewNullLogger(),
		HandshakeConfig:  plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH", MagicCookieValue: "1"},
		Plugins:          plugin.PluginSet{"identity": dispensed{}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
	}
	process := plugin.NewClient(cfg)
	b.Cleanup(process.Kill)
	proto, err := process.Client()
	if err != nil {
		b.Fatal(err)
	}
	raw, err := proto.Dispense("identity")
	if err != nil {
		b.Fatal(err)
	}
	return raw.(identity.Identity) //nolint:forcetypeassert // dispensed gives nothing else
}

// dispensed is the client's side of go-plugin's interface.
type dispensed struct {
	plugin.NetRPCUnsupportedPlugin
}

func (dispensed) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (dispensed) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return identity.NewClient(conn), nil
}
