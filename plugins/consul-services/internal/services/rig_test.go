package services

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// sideBySide is the number of parallel tests. They mostly wait for their Consul.
const sideBySide = 4

func TestMain(m *testing.M) {
	check.SideBySide(sideBySide)
	goleak.VerifyTestMain(m)
}

// Exactly the policies in the package's documentation.
const (
	policy = `
service_prefix "" { policy = "write" }
node_prefix    "" { policy = "read" }
agent_prefix   "" { policy = "read" }
`
	gatewayPolicy = policy + `mesh = "write"`
)

// rig is a real Consul with ACLs, and the plugin's implementation with a token of the documented policy.
type rig struct {
	*consul.Cluster
	*Services
	consul service.Consul // through proxy
	proxy  *consul.Proxy
	admin  *api.Client
	token  string // the accessor of the host's
}

func start(t *testing.T, rules string, opts consul.Options) *rig {
	t.Helper()
	opts.ACL = true
	c := consul.Start(t, opts)
	c.Policy(t, "node", rules)
	r := &rig{Cluster: c, Services: New(), proxy: c.Proxy(t, 0), admin: c.Client(c.Management)}
	t.Cleanup(func() { _ = r.Close() })
	secret := c.Token(t, "node")
	check.Eventually(t, "the agent knows the token", func() bool {
		token, _, err := c.Client(secret).ACL().TokenReadSelf(&api.QueryOptions{AllowStale: true})
		if err == nil {
			r.token = token.AccessorID
		}
		return err == nil
	})
	r.consul = r.proxy.Service(c.Service("default", c.TokenFile(t, secret)))
	return r
}

var owner = registration.Owner{Cluster: "c1", Node: "n1"}

// instance is a service of the workload "w".
func instance(name string, change ...func(*service.Service)) registration.Instance {
	i := registration.Instance{
		ID: "pannier:n1:default:w:" + name, Owner: owner, Namespace: "default", Workload: "w",
		Service: service.Service{Name: name, Port: "8080", Tags: []string{"a", "b"}, Meta: map[string]string{"k": "v"}},
	}
	for _, f := range change {
		f(&i.Service)
	}
	return i
}

// register registers instances until the test's end.
func (r *rig) register(t *testing.T, instances ...registration.Instance) {
	t.Helper()
	r.removeAtEnd(t, instances...)
	for _, i := range instances {
		if _, err := r.Register(t.Context(), r.consul, i); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *rig) removeAtEnd(t *testing.T, instances ...registration.Instance) {
	t.Helper()
	t.Cleanup(func() {
		for _, i := range instances {
			if err := r.Deregister(context.Background(), r.consul, i.Owner, i.ID); err != nil {
				t.Error(err)
			}
		}
		check.Eventually(t, "the catalog has lost what was registered", func() bool {
			for _, i := range instances {
				if r.inCatalog(t, i.ID) != nil || r.inCatalog(t, i.ID+sidecarSuffix) != nil {
					return false
				}
			}
			return true
		})
	})
}

// sync calls Sync without waiting, and describes what it did.
func (r *rig) sync(t *testing.T, instances ...registration.Instance) (index uint64, done []string) {
	t.Helper()
	return r.syncFrom(t, 0, instances...)
}

func (r *rig) syncFrom(t *testing.T, index uint64, instances ...registration.Instance) (uint64, []string) {
	t.Helper()
	index, changes, err := r.Sync(t.Context(), r.consul,
		registration.SyncRequest{Owner: owner, Instances: instances, Index: index, Wait: time.Minute})
	check.NoError(t, err)
	var done []string
	for _, c := range changes {
		done = append(done, fmt.Sprintf("%s %s: %s", c.Action, strings.TrimPrefix(c.ID, "pannier:n1:default:w:"), c.Reason))
	}
	return index, done
}

// want is what Consul should have of an instance.
func (r *rig) want(t *testing.T, i registration.Instance) *wanted {
	t.Helper()
	w, err := want(i)
	check.NoError(t, err)
	w.markToken(r.token)
	return w
}

// meta returns a service's meta without the mark of the host's token, which it checks.
func (r *rig) meta(t *testing.T, s *api.AgentService) map[string]string {
	t.Helper()
	meta := maps.Clone(s.Meta)
	if meta[markToken] != r.token {
		t.Errorf("%s is marked with the token %q, and the host has %s", s.ID, meta[markToken], r.token)
	}
	delete(meta, markToken)
	return meta
}

// quiet checks that a pass writes nothing, and makes only the one query of the catalog.
func (r *rig) quiet(t *testing.T, instances ...registration.Instance) {
	t.Helper()
	before := len(r.proxy.Requests())
	if _, done := r.sync(t, instances...); len(done) > 0 {
		t.Errorf("a pass without drift did %v", done)
	}
	asked := slices.DeleteFunc(slices.Clone(r.proxy.Requests()[before:]), func(request string) bool {
		return request == "GET /v1/agent/connect/ca/roots" // the local agent answers it
	})
	if len(asked) != 1 || !strings.HasPrefix(asked[0], "GET /v1/internal/ui/node/") {
		t.Errorf("a pass without drift made the requests %v", asked)
	}
}

// settled runs Sync until a pass does nothing, which means that the agent has updated the catalog. On a busy machine
// that may take the agent longer than Sync's patience.
func (r *rig) settled(t *testing.T, instances ...registration.Instance) (index uint64) {
	t.Helper()
	check.Eventually(t, "a pass that does nothing", func() bool {
		var done []string
		index, done = r.sync(t, instances...)
		return len(done) == 0
	})
	return index
}

// inCatalog returns the service in the catalog, or nil.
func (r *rig) inCatalog(t *testing.T, id string) *api.AgentService {
	t.Helper()
	list, _, err := r.admin.Catalog().NodeServiceList("server-0", nil)
	check.NoError(t, err)
	for _, s := range list.Services {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// checks returns a service's checks in the catalog, by id.
func (r *rig) checks(t *testing.T, id string) map[string]*api.HealthCheck {
	t.Helper()
	all, _, err := r.admin.Health().Node("server-0", nil)
	check.NoError(t, err)
	out := map[string]*api.HealthCheck{}
	for _, c := range all {
		if c.ServiceID == id {
			out[c.CheckID] = c
		}
	}
	return out
}

// repairs checks that a pass after change makes the wanted repair. From time to time the agent itself
// compares its state with the catalog and updates the health of checks, so it may have made the repair
// before. Then the change is repeated.
func (r *rig) repairs(t *testing.T, change func(), want string, instances ...registration.Instance) {
	t.Helper()
	index, done := r.sync(t, instances...)
	for range 3 {
		change()
		if index, done = r.syncFrom(t, index, instances...); slices.Equal(done, []string{want}) {
			return
		}
	}
	t.Errorf("no pass did %s; the last one did %q", want, done)
}

func wantCode(t *testing.T, err error, code codes.Code, text ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %s", err, code)
		return
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in the error: %v", s, err)
		}
	}
}

func wantDone(t *testing.T, done []string, want ...string) {
	t.Helper()
	if !slices.Equal(done, want) {
		t.Errorf("done: %q, want %q", done, want)
	}
}

func bounded(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
