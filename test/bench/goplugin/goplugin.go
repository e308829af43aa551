// Package goplugin starts a plugin of the kind identity with go-plugin's own client, without Pannier: what Pannier's
// calls of a plugin are compared with. It may be imported by tests only.
package goplugin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/wire"
)

// Start starts a program that serves the plugin "identity" of go-plugin's, with the handshake of the benchmarks, over
// go-plugin's TLS. It ends with the benchmark.
func Start(b *testing.B, program string, args ...string) identity.Identity {
	b.Helper()
	client, _ := start(b, &plugin.ClientConfig{Cmd: exec.Command(program, args...), AutoMTLS: true})
	return client
}

// StartWithKey is Start with a key for the process that the caller's authority has issued, as Pannier's plugins have
// one. end, which may be repeated, ends the process.
func StartWithKey(b *testing.B, program string, authority *wire.Authority) (client identity.Identity, end func()) {
	b.Helper()
	const name = "bench.plugin.pannier"
	bundle, err := authority.Issue(name)
	if err != nil {
		b.Fatal(err)
	}
	key := filepath.Join(b.TempDir(), "tls.pem")
	if err := os.WriteFile(key, bundle, 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{wire.EnvTLSBundle + "=" + key}
	return start(b, &plugin.ClientConfig{Cmd: cmd, SkipHostEnv: true, TLSConfig: authority.ClientTLS(name)})
}

func start(b *testing.B, cfg *plugin.ClientConfig) (client identity.Identity, end func()) {
	b.Helper()
	cfg.HandshakeConfig = plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH", MagicCookieValue: "1"}
	cfg.Plugins = plugin.PluginSet{"identity": dispensed{}}
	cfg.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	cfg.Logger = hclog.NewNullLogger()
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
	return raw.(identity.Identity), process.Kill //nolint:forcetypeassert // dispensed gives nothing else
}

// dispensed is the client's side of go-plugin's interface.
type dispensed struct {
	plugin.NetRPCUnsupportedPlugin
}

func (dispensed) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (dispensed) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return identity.NewClient(conn), nil
}
