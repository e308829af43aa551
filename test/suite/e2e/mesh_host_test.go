package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/xds"
)

// The ways in which services get their tokens.
const (
	minted  = "minted"
	byLogin = "by login"
)

// secretsUser owns the secrets of the tests' workloads.
const (
	secretsUser = "nobody"
	secretsUID  = 65534
)

// The minimal Consul policies that Pannier needs, as in docs/consul.md.
const (
	nodePolicy = `
service_prefix "" {
  policy     = "write"
  intentions = "write"
}
node_prefix "" { policy = "read" }
agent_prefix "" { policy = "read" }
mesh = "write"
`
	sidsPolicy = `acl = "write"`
)

// mesh is a host with a Consul that has a default policy of deny and serves only TLS.
type mesh struct {
	*testhost.Host
	consul *consul.Cluster
	reach  service.Consul // the address by which the host reaches it
	// nodeToken may register services. aclToken may write ACLs; it is empty with logins.
	nodeToken, aclToken, aclTokenFile string
	// the lifetime of tokens from logins; 0: an hour
	tokenLife time.Duration

	t testing.TB
}

// login is the auth method of hosts that get their tokens by login.
const login = "pannier"

// newMesh prepares the host and starts its Consul. more is added to the agent's configuration.
func newMesh(t testing.TB, mode, more string) *mesh {
	t.Helper()
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	return joinMesh(t, c, mode, more)
}

// joinMesh prepares a host for a running Consul. There is one host for each Consul: their policies
// have its name.
func joinMesh(t testing.TB, c *consul.Cluster, mode, more string) *mesh {
	t.Helper()
	c.Policy(t, "node", nodePolicy)
	m := &mesh{consul: c, nodeToken: c.Token(t, "node"), t: t}
	m.reach = c.Service("", c.TokenFile(t, m.nodeToken))
	switch mode {
	case minted:
		c.Policy(t, "sids", sidsPolicy)
		m.aclToken = c.Token(t, "sids")
		m.aclTokenFile = c.TokenFile(t, m.aclToken)
		more += fmt.Sprintf("\nplugin \"sids\" {\n  config {\n    token_file = %q\n  }\n}\n", m.aclTokenFile)
	case byLogin:
		m.reach.AuthMethod = login
	}
	m.Host = testhost.New(t, consul.Config(m.reach)+more, "sids", "consul-services", "envoy-bootstrap")
	return m
}

// open starts the agent. With logins, Consul is then configured with the URL of the agent's keys.
func (m *mesh) open() {
	m.t.Helper()
	m.Start()
	if m.reach.AuthMethod == "" {
		return
	}
	s, err := m.Status()
	if err != nil {
		m.t.Fatal(err)
	}
	m.consul.JWT(m.t, consul.JWTMethod{
		Name: login, JWKSURL: "http://" + s.GetHttpAddress() +
			"/.well-known/jwks.json", Issuer: "pannier", Audience: "consul.io",
		MaxTokenTTL: m.tokenLife,
	})
}

// eachMode runs a test with each way of getting tokens, each with a separate Consul and a running host.
func eachMode(t *testing.T, test func(t *testing.T, m *mesh)) {
	eachModeAs(t, func(*mesh) {}, test)
}

// eachModeAs is eachMode with preparations before the host is started.
func eachModeAs(t *testing.T, prepare func(m *mesh), test func(t *testing.T, m *mesh)) {
	t.Parallel()
	for _, mode := range []string{minted, byLogin} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, mode, testhost.LocalDriver(t))
			prepare(m)
			m.open()
			test(t, m)
		})
	}
}

// talkative sets the agent's log level to trace.
func (m *mesh) talkative() {
	m.t.Helper()
	text, err := os.ReadFile(m.Path("agent.hcl"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.Write("agent.hcl", strings.Replace(string(text), `"debug"`, `"trace"`, 1))
}

// meshWorkload writes the specification of a workload whose secrets belong to secretsUser, and
// returns its path.
func (m *mesh) meshWorkload(id, body string) string {
	m.t.Helper()
	return m.Write(id+".hcl", fmt.Sprintf("workload %q {\n  user = %q\n%s\n}\n", id, secretsUser, body))
}

// envoyBeside makes a folder that the workloads' user can write to, with Envoy's program: that user does not reach the
// cache.
func (m *mesh) envoyBeside(program string) (dir string) {
	m.t.Helper()
	dir = m.Path("beside")
	check.NoError(m.t, os.Mkdir(dir, 0o777))
	check.NoError(m.t, errors.Join(os.Chmod(dir, 0o777), os.Chmod(m.Dir, 0o711)))
	text, err := os.ReadFile(program)
	check.NoError(m.t, err)
	check.NoError(m.t, os.WriteFile(dir+"/envoy", text, 0o755))
	return dir
}

// sidecarService returns a service block with a sidecar. proxy is the content of its proxy block.
func sidecarService(name, proxy string) string {
	return fmt.Sprintf(`
  service %q {
    port = 9000
    connect {
      sidecar_service {
        proxy {
%s
        }
      }
    }
  }`, name, proxy)
}

// workload returns a workload from the agent.
func (m *mesh) workload(id string) *hostv1.Workload {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Wait)
	defer cancel()
	answer, err := m.Client().Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Id: id})
	if err != nil {
		m.t.Fatal(err)
	}
	return answer.GetWorkload()
}

// service returns the status of a workload's only service.
func (m *mesh) service(id string) *hostv1.ServiceStatus {
	m.t.Helper()
	services := m.workload(id).GetServices()
	if len(services) != 1 {
		m.t.Fatalf("workload %q has the services %v, want one", id, services)
	}
	return services[0]
}

// secret reads a token's file.
func (m *mesh) secret(s *hostv1.ServiceStatus) string {
	m.t.Helper()
	raw, err := os.ReadFile(s.GetTokenFile())
	if err != nil {
		m.t.Fatal(err)
	}
	return string(raw)
}

// siTokens returns the tokens in Consul that Pannier has created, by accessor.
func (m *mesh) siTokens() map[string]*api.ACLTokenListEntry {
	m.t.Helper()
	found := map[string]*api.ACLTokenListEntry{}
	for _, t := range m.consul.Tokens(m.t) {
		if strings.HasPrefix(t.Description, "_pannier_si [") || strings.HasPrefix(t.Description, "token created via login") {
			found[t.AccessorID] = t
		}
	}
	return found
}

// ledgerTokens returns the accessors of the tokens in the ledger. A minted token's id is its accessor.
func (m *mesh) ledgerTokens() (accessors []string) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Wait)
	defer cancel()
	answer, err := m.Client().Tokens.ListTokens(ctx, &hostv1.ListTokensRequest{})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, t := range answer.GetTokens() {
		accessors = append(accessors, cmp.Or(t.GetAccessor(), t.GetId()))
	}
	return accessors
}

// nothingInMesh waits until nothing of a workload's services is left in Consul, the ledger and the host. lost
// are accessors of tokens that can only expire.
func (m *mesh) nothingInMesh(lost ...string) {
	m.t.Helper()
	m.NothingInUse()
	m.Eventually("nothing is left of the services", func() error {
		if s := m.consul.Services(m.t); len(s) > 0 {
			return fmt.Errorf("Consul has the services %v", s)
		}
		if e, _, err := m.consul.Client(m.consul.Management).ConfigEntries().List(api.ServiceIntentions, nil); err != nil ||
			len(e) > 0 {
			return fmt.Errorf("Consul has the intentions %v, %w", e, err)
		}
		if t := without(slices.Collect(maps.Keys(m.siTokens())), lost); len(t) > 0 {
			return fmt.Errorf("Consul has the tokens %q", t)
		}
		if t := without(m.ledgerTokens(), lost); len(t) > 0 {
			return fmt.Errorf("the ledger has the tokens %q", t)
		}
		return nil
	})
}

// without returns the tokens that are not in lost, sorted.
func without(tokens, lost []string) []string {
	tokens = slices.DeleteFunc(tokens, func(t string) bool { return slices.Contains(lost, t) })
	slices.Sort(tokens)
	return tokens
}

// identityOf reads a token in Consul, and the services of its identities.
func (m *mesh) identityOf(accessor string) (t *api.ACLToken, names []string) {
	m.t.Helper()
	t, _, err := m.consul.Client(m.consul.Management).ACL().TokenRead(accessor, nil)
	if err != nil {
		m.t.Fatalf("read the token %s: %v", accessor, err)
	}
	for _, i := range t.ServiceIdentities {
		names = append(names, i.ServiceName)
	}
	return t, names
}

// openStream opens a bootstrap's ADS stream, as Envoy would, and waits for clusters and listeners.
// It ends with the test.
func openStream(t testing.TB, path string) (*xds.Stream, error) {
	t.Helper()
	b, err := xds.Read(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Wait)
	t.Cleanup(cancel)
	s, err := xds.Open(ctx, b)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Ready(); err != nil {
		return nil, err
	}
	return s, nil
}

// hasMode checks a path's permissions and owner.
func hasMode(t testing.TB, path string, want os.FileMode, uid int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Errorf("%s: %v", path, err)
		return
	}
	if got := os.FileMode(st.Mode & 0o7777); got != want || int(st.Uid) != uid {
		t.Errorf("%s is %#o of uid %d, want %#o of %d", path, got, st.Uid, want, uid)
	}
}
