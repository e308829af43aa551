package meshbench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
)

// nodePolicy is the policy for registrations, as in docs/consul.md.
const nodePolicy = `
service_prefix "" { policy = "write" }
node_prefix "" { policy = "read" }
agent_prefix "" { policy = "read" }
mesh = "write"
`

// mesh is a Consul with ACLs and TLS, and the plugins for it, each in its own process.
type mesh struct {
	consul *consul.Cluster
	reach  service.Consul // the address for the host
	plugin *catalog.Catalog
	// aclToken may write ACLs; sids uses it.
	aclToken string
}

func newMesh(b *testing.B) *mesh {
	b.Helper()
	c := consul.Start(b, consul.Options{ACL: true, TLS: true})
	c.Policy(b, "node", nodePolicy)
	c.Policy(b, "sids", `acl = "write"`)
	m := &mesh{consul: c, aclToken: c.Token(b, "sids")}
	m.reach = c.Service(service.DefaultConsul, c.TokenFile(b, c.Token(b, "node")))
	m.plugin = catalog.New(plugins(b, c.TokenFile(b, m.aclToken)))
	return m
}

// plugins runs the plugins for Consul. The rate limit of sids is far above what Consul can do, so that the
// limit is not measured.
func plugins(b *testing.B, aclTokenFile string) *supervisor.Supervisor {
	b.Helper()
	dir := b.TempDir()
	sids := check.Must(json.Marshal(map[string]any{"token_file": aclTokenFile, "rate": 1_000_000}))(b)
	cfg := supervisor.Config{
		PluginDir: filepath.Join(dir, "plugins"), DataDir: filepath.Join(dir, "data"), StopPlugins: true,
		Plugins: []supervisor.Plugin{{Name: "sids", Config: sids}},
	}
	check.NoError(b, os.MkdirAll(cfg.PluginDir, 0o755))
	for _, name := range []string{"sids", "consul-services", "envoy-bootstrap"} {
		program := check.Must(os.ReadFile(testbin.Build(b, "plugins/"+name)))(b)
		check.NoError(b, os.WriteFile(filepath.Join(cfg.PluginDir, name), program, 0o755))
	}
	s := supervisor.New(cfg)
	check.NoError(b, s.Open(b.Context()))
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}
