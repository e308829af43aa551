package meshbench

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/testbin"
)

// newRelay starts a process that only passes requests on to Consul, with go-plugin's own client and its TLS.
func newRelay(b *testing.B, m *mesh) identity.Identity {
	b.Helper()
	dir, err := filepath.Abs("testdata/relay")
	if err != nil {
		b.Fatal(err)
	}
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH", MagicCookieValue: "1"},
		Plugins:          goplugin.PluginSet{"relay": dispensed{}},
		Cmd:              exec.Command(testbin.BuildDir(b, dir), m.reach.Address, m.reach.CAFile, m.aclToken),
		AutoMTLS:         true,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	b.Cleanup(client.Kill)
	proto, err := client.Client()
	if err != nil {
		b.Fatal(err)
	}
	raw, err := proto.Dispense("relay")
	if err != nil {
		b.Fatal(err)
	}
	return raw.(identity.Identity) //nolint:forcetypeassert // dispensed gives nothing else
}

// dispensed is the client's side of go-plugin's interface.
type dispensed struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (dispensed) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return nil }

func (dispensed) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return identity.NewClient(conn), nil
}

// pass requests a token through the bare relay.
func (t *tokenBench) pass(ctx context.Context, id string) error {
	_, _, err := t.relay.Derive(ctx, service.Consul{}, identity.DeriveRequest{
		ID: id, Subject: identity.Subject{Workload: id, Service: "web"},
	})
	return err
}
