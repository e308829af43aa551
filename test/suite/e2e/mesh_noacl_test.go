package e2e

import (
	"os"
	"testing"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/xds"
)

// A Consul without ACLs issues no tokens. Services join the mesh without any configuration for that.
func TestMeshWithoutACLs(t *testing.T) {
	t.Parallel()
	c := consul.Start(t, consul.Options{})
	m := &mesh{consul: c, reach: c.Service("", ""), t: t}
	m.Host = testhost.New(t, consul.Config(m.reach), "sids", "consul-services", "envoy-bootstrap")
	m.Start()
	spec := m.meshWorkload("w", sidecarService("web", ""))
	m.Run("workload", "start", spec)
	s := m.service("w")
	if s.GetTokenFile() != "" || s.GetTokenAccessor() != "" || s.GetMessage() != "" {
		t.Errorf("the service is %v", s)
	}
	hasMode(t, s.GetBootstrapFile(), 0o400, secretsUID)
	if b, err := xds.Read(s.GetBootstrapFile()); err != nil || xds.Token(b) != "" {
		t.Errorf("the bootstrap has a token, or cannot be read: %v", err)
	}
	if _, err := openStream(t, s.GetBootstrapFile()); err != nil {
		t.Errorf("the bootstrap cannot be used: %v", err)
	}
	m.Run("token", "sweep")
	if left := c.Services(t); len(left) != 2 {
		t.Errorf("Consul has the services %v", left)
	}
	m.Run("workload", "stop", spec)
	if left := c.Services(t); len(left) != 0 {
		t.Errorf("Consul has the services %v", left)
	}
	if left := m.ledgerTokens(); len(left) != 0 {
		t.Errorf("the ledger has the tokens %q", left)
	}
	if _, err := os.Stat(s.GetBootstrapFile()); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", s.GetBootstrapFile(), err)
	}
}
