package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/xds"
)

// gateway is a kind of gateway, and a cluster that its stream must contain: a service in the mesh (db) or
// outside it (archive).
type gateway struct{ kind, field, block, cluster string }

var gateways = []gateway{
	{"ingress", "", `ingress {
          listener {
            port     = 8080
            protocol = "tcp"
            service {
              name = "db"
            }
          }
        }`, "db"},
	{"terminating", "", `terminating {
          service {
            name = "archive"
          }
        }`, "archive"},
	{"mesh", "port = 8444", "mesh {}", "db"},
	{"api", `kind = "api-gateway"`, "api {}", "db"},
}

// TestGateways starts each kind of gateway with a token and a bootstrap, and opens its stream to
// Consul.
func TestGateways(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	m.Run("workload", "start", m.meshWorkload("db", sidecarService("db", "")))
	archive := &api.CatalogRegistration{
		Node: "outside", Address: "192.0.2.1", Service: &api.AgentService{Service: "archive", Port: 443},
	}
	if _, err := m.consul.Client(m.consul.Management).Catalog().Register(archive, nil); err != nil {
		t.Fatal(err)
	}
	shell := exec.CommandContext(t.Context(), "sh", "-euc", docpages.Block(t, "consul.md", "run", "api-gateway"))
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(consul.Binary(t))+":"+os.Getenv("PATH"),
		"CONSUL_HTTP_ADDR="+m.reach.Address, "CONSUL_CACERT="+m.reach.CAFile, "CONSUL_HTTP_TOKEN="+m.consul.Management)
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, g := range gateways {
		m.Run("workload", "start", m.meshWorkload(g.kind, fmt.Sprintf(`
  service %q {
    %s
    connect {
      gateway {
        %s
      }
    }
  }`, g.kind, g.field, g.block)))
		g.check(t, m)
	}
	for _, g := range gateways {
		m.Run("workload", "stop", g.kind)
	}
	m.Run("workload", "stop", "db")
	m.nothingInMesh()
}

func (g gateway) check(t *testing.T, m *mesh) {
	t.Helper()
	s := m.service(g.kind)
	token, identities := m.identityOf(s.GetTokenAccessor())
	if token.SecretID != m.secret(s) || !slices.Equal(identities, []string{g.kind}) {
		t.Errorf("the %s gateway's token has the identities %q", g.kind, identities)
	}
	there := m.consul.Services(t)[s.GetId()]
	if s.GetProxyId() != s.GetId() || there == nil || there.Kind != api.ServiceKind(g.kind+"-gateway") {
		t.Errorf("the %s gateway %q has the proxy %q and in Consul: %+v", g.kind, s.GetId(), s.GetProxyId(), there)
	}
	if g.kind == "terminating" && (s.GetPort() == 0 || there.Port != int(s.GetPort())) {
		t.Errorf("the gateway without a port has the port %d, and in Consul %d", s.GetPort(), there.Port)
	}
	hasMode(t, s.GetBootstrapFile(), 0o400, secretsUID)
	ads, err := openStream(t, s.GetBootstrapFile())
	if err != nil {
		t.Errorf("the %s gateway's stream: %v", g.kind, err)
		return
	}
	// Consul may learn about other services a little later.
	for !g.complete(ads) {
		if err := ads.Receive(); err != nil {
			t.Errorf("the %s gateway's stream has the clusters %v and the listeners %v: %v", g.kind, ads.Clusters,
				ads.Listeners, err)
			return
		}
	}
}

// complete reports whether the stream has delivered the cluster, and a listener. A terminating gateway's
// listener must accept callers of the service.
func (g gateway) complete(ads *xds.Stream) bool {
	begin := g.cluster + ".default.dc1.internal."
	found := false
	for name := range ads.Clusters {
		found = found || strings.HasPrefix(name, begin)
	}
	if g.kind != "terminating" {
		return found && len(ads.Listeners) > 0
	}
	for _, l := range ads.Listeners {
		for _, c := range l.GetFilterChains() {
			if names := c.GetFilterChainMatch().GetServerNames(); len(names) > 0 && strings.HasPrefix(names[0], begin) {
				return found
			}
		}
	}
	return false
}
