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

	"github.com/pannier/pannier/test/lib/check"
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

// TestGatewaysAreChangedInPlace changes what running gateways listen on and speak for. Their streams get it from
// Consul, and their bootstraps stay.
func TestGatewaysAreChangedInPlace(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	m.Run("workload", "start", m.meshWorkload("db", sidecarService("db", "")))
	for _, name := range []string{"archive", "files"} {
		_, err := m.consul.Client(m.consul.Management).Catalog().Register(&api.CatalogRegistration{
			Node: "outside", Address: "192.0.2.1", Service: &api.AgentService{Service: name, Port: 443},
		}, nil)
		check.NoError(t, err)
	}
	spec := func(kind, block string) string {
		return m.meshWorkload(kind, fmt.Sprintf("\n  service %q {\n    connect {\n      gateway {\n%s\n      }\n    }\n  }",
			kind, block))
	}
	listener := func(port int) string {
		return fmt.Sprintf("ingress {\n          listener {\n            port = %d\n            service {\n              "+
			"name = \"db\"\n            }\n          }\n        }", port)
	}
	speaksFor := func(name string) string {
		return fmt.Sprintf("terminating {\n          service {\n            name = %q\n          }\n        }", name)
	}
	for _, c := range []struct {
		kind, from, to string
		changed        func(ads *xds.Stream) bool
	}{
		{"ingress", listener(8080), listener(8081), func(ads *xds.Stream) bool { return len(listenersOn(ads, 8081)) == 1 }},
		{"terminating", speaksFor("archive"), speaksFor("files"), gateway{kind: "terminating", cluster: "files"}.complete},
	} {
		m.Run("workload", "start", spec(c.kind, c.from))
		s := m.service(c.kind)
		before := check.Must(os.Stat(s.GetBootstrapFile()))(t)
		ads, err := openStream(t, s.GetBootstrapFile())
		check.NoError(t, err)
		m.Run("workload", "update", spec(c.kind, c.to))
		for !c.changed(ads) {
			check.NoError(t, ads.Receive())
		}
		if now := check.Must(os.Stat(s.GetBootstrapFile()))(t); !os.SameFile(before, now) ||
			m.service(c.kind).GetTokenAccessor() != s.GetTokenAccessor() {
			t.Errorf("the bootstrap or the token of the %s gateway was replaced", c.kind)
		}
		if out := m.Try("workload", "update", spec(c.kind, "mesh {}")); out.Code == 0 {
			t.Errorf("a running %s gateway became another one", c.kind)
		}
		m.Run("workload", "stop", c.kind)
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
