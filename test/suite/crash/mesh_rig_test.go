package crash

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
)

// inMesh is the kind whose workload has a service with a sidecar.
var inMesh = kind{name: "mesh", mesh: true, command: kinds[0].command}

// meshPlugins are the plugins that call Consul.
var meshPlugins = []string{"sids", "consul-services", "envoy-bootstrap"}

// mesh is a rig's Consul. The host reaches it through a proxy that reports when a request is in
// flight.
type mesh struct {
	consul *consul.Cluster
	proxy  *consul.Proxy
	blocks string // of the agent's configuration
}

func newMesh(t, all *testing.T) *mesh {
	t.Helper()
	for _, p := range meshPlugins {
		_ = testbin.Build(t, "plugins/"+p) // a build error is to fail here
	}
	c := consul.Start(all, consul.Options{ACL: true, TLS: true})
	c.Policy(t, "node",
		`service_prefix "" { policy = "write" intentions = "write" } node_prefix "" { policy = "read" } agent_prefix "" { policy = "read" }`)
	c.Policy(t, "sids", `acl = "write"`)
	m := &mesh{consul: c, proxy: c.Proxy(all, 0)}
	m.blocks = consul.Config(m.proxy.Service(c.Service("", c.TokenFile(all, c.Token(t, "node"))))) +
		fmt.Sprintf("plugin \"sids\" {\n  config {\n    token_file = %q\n  }\n}\n", c.TokenFile(all, c.Token(t, "sids")))
	return m
}

// services is the workload's service block.
func (r *rig) services() string {
	if r.mesh == nil {
		return ""
	}
	return `
  user = "nobody"
  service "web" {
    port = 9000
    tags = ["crash"]
    intentions = ["api"]
    check {
      type     = "tcp"
      interval = "1h"
      timeout  = "1s"
    }
    connect {
      sidecar_service {}
    }
  }
`
}

// request is a plugin's request to Consul.
type request struct {
	name   string // in words
	plugin string // the plugin that makes it
	match  consul.Match
}

// arm runs strike while the request is in flight. The request's fate does not depend on who dies:
// either it never reaches Consul, or its answer is lost.
func (m *mesh) arm(c crash, strike func()) {
	match := c.request.match
	match.Times = 1
	m.proxy.Add(match, func(p *consul.Proxy, w http.ResponseWriter, req *http.Request, lifted <-chan struct{}) {
		fault := consul.Refuse()
		if c.worked {
			defer strike()
			fault = consul.Cut()
		} else {
			strike()
		}
		fault(p, w, req, lifted)
	})
}

// lookAtMesh adds Consul's and the ledger's services and tokens, after one sweep, and the secret
// files.
func (r *rig) lookAtMesh(s state) {
	r.h.Run("token", "sweep")
	client := r.mesh.consul.Client(r.mesh.consul.Management)
	for _, one := range r.mesh.consul.Services(r.t) {
		line := fmt.Sprintf("%s is %s %q at %q:%d, tags %q, meta %q", one.ID, cmp.Or(string(one.Kind), "service"),
			one.Service, one.Address, one.Port, one.Tags, one.Meta)
		s["services in Consul"] = append(s["services in Consul"], named(line))
	}
	checks, err := client.Agent().Checks()
	if err != nil {
		r.t.Fatalf("list the checks: %v", err)
	}
	for _, one := range checks {
		s["checks in Consul"] = append(s["checks in Consul"], fmt.Sprintf("%s of %s", one.Name, one.ServiceID))
	}
	for _, one := range r.mesh.consul.Tokens(r.t) {
		s["tokens in Consul"] = append(s["tokens in Consul"],
			named(fmt.Sprintf("%s, with %d identities and %d policies", one.Description, len(one.ServiceIdentities),
				len(one.Policies))))
	}
	entries, _, err := client.ConfigEntries().List(api.ServiceIntentions, nil)
	if err != nil {
		r.t.Fatalf("list the intentions: %v", err)
	}
	for _, one := range entries {
		for _, source := range one.(*api.ServiceIntentionsConfigEntry).Sources {
			line := fmt.Sprintf("%s of %s for %s, held by %v", source.Action, one.GetName(), source.Name, one.GetMeta())
			s["intentions in Consul"] = append(s["intentions in Consul"], line)
		}
	}
	var ledger struct{ Tokens []map[string]any }
	r.decode(&ledger, "token", "list", "-o", "json")
	for _, one := range ledger.Tokens {
		s["tokens in the ledger"] = append(s["tokens in the ledger"], plain(one))
	}
	s["secrets"] = r.secrets()
	for _, about := range []string{
		"services in Consul", "checks in Consul", "intentions in Consul", "tokens in Consul", "tokens in the ledger",
	} {
		slices.Sort(s[about])
		s[about] = append(s[about], fmt.Sprintf("%d in all", len(s[about]))) // so that none is a line too
	}
}

// observeMesh checks that a running workload has made all that is compared, and a stopped one has
// left nothing.
func (r *rig) observeMesh(t *testing.T) {
	t.Helper()
	for about, made := range map[string]int{
		"services in Consul": 2, "intentions in Consul": 2, "tokens in the ledger": 1,
	} {
		// Each list has a line with its length.
		if len(r.running[about]) != made+1 || len(r.stopped[about]) != 1 {
			t.Fatalf("%s: running %q, stopped %q", about, r.running[about], r.stopped[about])
		}
	}
	if len(r.running["tokens in Consul"]) != len(r.stopped["tokens in Consul"])+1 || len(r.running["secrets"]) != 7 ||
		len(r.stopped["secrets"]) != 0 {
		t.Fatalf("what is looked at is not what a service makes: running\n%v\nstopped\n%v", r.running, r.stopped)
	}
}

// secrets are the services' secret files, and whether their content is right.
func (r *rig) secrets() (out []string) {
	root := r.seen(r.h.SecretsDir())
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || path == root || e != nil && e.Name() == ".pannier-secrets" {
			return nil
		}
		var st unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %#o of uid %d", strings.TrimPrefix(path, root), st.Mode, st.Uid)
		if !e.IsDir() {
			line += ", " + r.holds(path)
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		r.t.Fatalf("read the secrets: %v", err)
	}
	return out
}

// holds reports whether a file contains the service's token.
func (r *rig) holds(path string) string {
	secret, err := os.ReadFile(filepath.Join(filepath.Dir(path), "si_token"))
	if err != nil {
		return "without a token beside it"
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	self, _, err := r.mesh.consul.Client(string(secret)).ACL().TokenReadSelf(nil)
	switch {
	case err != nil:
		return "the token is not Consul's: " + err.Error()
	case !bytes.Contains(content, secret):
		return "without the token"
	}
	return named("with the token " + self.Description)
}
