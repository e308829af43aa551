package meshbench

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/bench/goplugin"
	"github.com/pannier/pannier/test/lib/testbin"
)

// newRelay starts a process that only passes requests on to Consul, with go-plugin's own client and its TLS.
func newRelay(b *testing.B, m *mesh) identity.Identity {
	b.Helper()
	dir, err := filepath.Abs("testdata/relay")
	if err != nil {
		b.Fatal(err)
	}
	return goplugin.Start(b, testbin.BuildDir(b, dir), m.reach.Address, m.reach.CAFile, m.aclToken)
}

// pass requests a token through the bare relay.
func (t *tokenBench) pass(ctx context.Context, id string) error {
	_, _, err := t.relay.Derive(ctx, service.Consul{}, identity.DeriveRequest{
		ID: id, Subject: identity.Subject{Workload: id, Service: "web"},
	})
	return err
}
