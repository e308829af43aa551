package cluster_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// mesh is a cluster whose hosts all reach one Consul, on a socket, since each host has its own network.
type mesh struct {
	*testcluster.Cluster
	consul *consul.Cluster
}

// newMesh starts a Consul and prepares a cluster. block is added to the consul block of each host.
func newMesh(t *testing.T, opts testcluster.Options, block string) *mesh {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "consul.sock")
	m := &mesh{consul: consul.Start(t, consul.Options{
		ACL: true, Config: fmt.Sprintf("addresses {\n  http = \"127.0.0.1 unix://%s\"\n}", socket),
	})}
	opts.Plugins = []string{"sids", "consul-services"}
	opts.Config += fmt.Sprintf("\nconsul {\n  address = \"unix://%s\"\n  token_file = %q\n  %s\n}\n", socket,
		filepath.Join(dir, "consul.token"), block)
	m.Cluster = testcluster.New(t, opts)
	return m
}

// setUp runs pannier setup consul on a host, with Consul's management token.
func (m *mesh) setUp(on *testhost.Host, args ...string) (string, error) {
	cmd := on.Command(append([]string{"setup", "consul", "-config", on.Path("agent.hcl")}, args...)...)
	cmd.Env = append(cmd.Env, "CONSUL_HTTP_TOKEN="+m.consul.Management)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("pannier setup consul %q: %w: %s", args, err, out)
	}
	return string(out), err
}

// service writes the spec of a workload with a service in the mesh that is its name.
func (m *mesh) service(on *testhost.Host, id, more string) (spec string) {
	return on.Write(id+".hcl", fmt.Sprintf(`
workload %q {
  service %q {
    port = 9000
    %s
    connect {
      native = true
    }
  }
}
`, id, id, more))
}

// The states of the other key.
const (
	none      = hostv1.SigningKeyState_SIGNING_KEY_STATE_UNSPECIFIED
	next      = hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT
	previous  = hostv1.SigningKeyState_SIGNING_KEY_STATE_PREVIOUS
	withdrawn = hostv1.SigningKeyState_SIGNING_KEY_STATE_WITHDRAWN
)

// TestServersDieWhileTheSigningKeyIsReplaced kills the leader in each phase of pannier setup consul -rotate-key, while
// services log in.
func TestServersDieWhileTheSigningKeyIsReplaced(t *testing.T) {
	t.Parallel()
	short := check.Must(os.ReadFile(testbin.BuildTags(t, "host/cmd/pannier-agent", "failpoint")))(t)
	m := newMesh(t, testcluster.Options{Servers: 3, Nodes: 1, ServerConfig: longLeases}, `auth_method = "pannier"`)
	launch(m.Hosts...)
	node := m.Host("node-1")
	check.Must(m.setUp(node, "-login"))(t)
	end := m.logins(t, node)

	_, err := node.Client().Secrets.RotateSigningKey(testhost.Soon(t), &hostv1.RotateSigningKeyRequest{})
	check.NoError(t, err)
	is := m.awaitKey(t, next, "has not the key")
	oldID, nextID := is.GetSigns().GetId(), is.GetOther().GetId()
	first := m.Leader()
	first.Kill()
	m.awaitKey(t, next, fmt.Sprintf("server %q", first.Name))

	var said string
	var command sync.WaitGroup
	command.Go(func() { said, err = m.setUp(node, "-rotate-key") })
	defer command.Wait()
	node.Eventually("Consul has both keys", func() error {
		if n := len(m.known(t)); n != 2 {
			return fmt.Errorf("it has %d", n)
		}
		return nil
	})
	m.awaitKey(t, next, fmt.Sprintf("server %q", first.Name))
	second := m.Leader()
	first.Begin()
	second.Kill()
	launch(second)
	if command.Wait(); err != nil || !strings.Contains(said, ": signs since ") {
		t.Fatalf("%v, %s", err, said)
	}
	m.awaitKey(t, previous, "are over at")
	third := m.Leader()
	third.Kill()
	m.awaitKey(t, previous, "are over at")
	third.Install(short)
	launch(third)
	for _, s := range m.Servers() {
		if s != third {
			s.Install(short) // its keys overlap for a moment only
			s.Kill()
			launch(s)
		}
	}

	m.awaitKey(t, withdrawn, "still has the key "+oldID)
	m.Leader().Kill()
	m.awaitKey(t, withdrawn, "still has the key "+oldID)
	check.Must(m.setUp(node))(t)
	if is := m.awaitKey(t, none, ""); is.GetSigns().GetId() != nextID || is.GetOther() != nil || len(m.known(t)) != 1 {
		t.Errorf("the key %s is replaced by %s, the keys are %v, and Consul has %d", oldID, nextID, is, len(m.known(t)))
	}
	end()
}

// logins starts and stops a workload whose service logs in, again and again, until the result is called.
func (m *mesh) logins(t *testing.T, on *testhost.Host) (end func()) {
	spec, done := m.service(on, "web", ""), make(chan struct{})
	count := 0
	var loop sync.WaitGroup
	loop.Go(func() {
		for ; ; count++ {
			for _, args := range [][]string{{"workload", "start", spec}, {"workload", "stop", "web"}} {
				if out, err := on.Command(args...).CombinedOutput(); err != nil {
					t.Errorf("pannier %q, after %d logins: %v: %s", args, count, err, out)
					return
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	end = sync.OnceFunc(func() { close(done); loop.Wait(); t.Logf("logins: %d", count) })
	t.Cleanup(end)
	return end
}

// awaitKey waits until the rotation of the signing key is in a state, and waits for something with that text.
func (m *mesh) awaitKey(t *testing.T, state hostv1.SigningKeyState, why string) (is *hostv1.SigningKeys) {
	t.Helper()
	m.Host("node-1").Eventually(fmt.Sprintf("the key is %s and waits for %q", state, why), func() error {
		resp, err := m.Host("node-1").Client().Secrets.GetSigningKeys(testhost.Soon(t), &hostv1.GetSigningKeysRequest{})
		if err != nil {
			return err
		}
		is = resp.GetKeys()
		if is.GetOtherState() != state || !strings.Contains(is.GetWaitsFor(), why) {
			return fmt.Errorf("it is %s and waits for %q", is.GetOtherState(), is.GetWaitsFor())
		}
		return nil
	})
	return is
}

// known are the keys in the auth method.
func (m *mesh) known(t *testing.T) []any {
	t.Helper()
	method, _, err := m.consul.Client(m.consul.Management).ACL().AuthMethodRead("pannier", nil)
	check.NoError(t, err)
	keys, _ := method.Config["JWTValidationPubKeys"].([]any)
	return keys
}

// TestConsulForgetsHostsThatAreGone has a host purged, and another one collected: what they have left in Consul is
// removed, and what a living host has there stays as it is.
func TestConsulForgetsHostsThatAreGone(t *testing.T) {
	t.Parallel()
	m := newMesh(t, testcluster.Options{
		Servers: 1, Nodes: 3, ServerConfig: "heartbeat_ttl = \"1s\"\nstop_after = \"5s\"\nstop_margin = \"4s\"",
	}, "")
	aclToken := m.consul.TokenFile(t, m.consul.Management)
	for _, h := range m.Hosts {
		rewrite(t, h, "consul {", fmt.Sprintf("gc {\n  interval = \"1s\"\n}\nplugin \"sids\" {\n  config {\n    token_file = %q\n  }\n}\nconsul {", aclToken))
	}
	launch(m.Hosts...)
	server, purged, collected, lives := m.Host("server-1"), m.Host("node-1"), m.Host("node-2"), m.Host("node-3")
	check.Must(m.setUp(server, "-minted", "-intentions"))(t)
	callers := map[*testhost.Host]string{purged: "a", collected: "b", lives: "c"}
	for h, caller := range callers {
		h.Run("workload", "start", m.shared(h, caller))
	}
	if got, want := m.left(t), map[string]string{
		"node-1": "service token", "node-2": "service token", "node-3": "service token", "callers": "* a b c",
	}; !maps.Equal(got, want) {
		t.Fatalf("Consul has %v, want %v", got, want)
	}
	before := m.of(t, lives)

	crash(t, purged)
	server.AwaitNode(purged.Name, "down")
	server.Run("node", "purge", purged.Name)
	m.awaitLeft(t, server, map[string]string{
		"node-2": "service token", "node-3": "service token", "callers": "* b c",
	})

	server.Stop()
	rewrite(t, server, "gc {", "gc {\n  node_threshold = \"1s\"")
	crash(t, collected)
	launch(server)
	m.awaitLeft(t, server, map[string]string{"node-3": "service token", "callers": "* c"})
	if now := m.of(t, lives); !slices.Equal(now, before) {
		t.Errorf("the living host has %q in Consul, and had %q", now, before)
	}
	server.Eventually("the node is collected", func() error { // after that
		if all := server.Run("node", "list"); strings.Contains(all, collected.Name) || !strings.Contains(all, lives.Name) {
			return fmt.Errorf("the nodes are %s", all)
		}
		return nil
	})
	lives.Run("workload", "stop", lives.Name)
	m.awaitLeft(t, server, map[string]string{})
}

// shared writes the spec of a workload of a host with the service db, which a caller may call.
func (m *mesh) shared(on *testhost.Host, caller string) (spec string) {
	return on.Write("db.hcl", fmt.Sprintf(`
workload %q {
  service "db" {
    port       = 9000
    intentions = [%q]
    connect {
      native = true
    }
  }
}
`, on.Name, caller))
}

// left is what Consul has: of each host, and the callers of the service.
func (m *mesh) left(t *testing.T) map[string]string {
	t.Helper()
	left := map[string]string{}
	for _, h := range m.Hosts {
		if of := m.of(t, h); len(of) > 0 {
			var kinds []string
			for _, what := range of {
				kind, _, _ := strings.Cut(what, " ")
				kinds = append(kinds, kind)
			}
			left[h.Name] = strings.Join(kinds, " ")
		}
	}
	entry, _, err := m.consul.Client(m.consul.Management).ConfigEntries().Get(api.ServiceIntentions, "db", nil)
	var answer api.StatusError
	if errors.As(err, &answer) && answer.Code == 404 {
		return left
	}
	check.NoError(t, err)
	var callers []string
	for _, s := range entry.(*api.ServiceIntentionsConfigEntry).Sources {
		callers = append(callers, s.Name)
	}
	slices.Sort(callers)
	left["callers"] = strings.Join(callers, " ")
	return left
}

// of is what a host has in Consul: its service and its token, with when they were changed.
func (m *mesh) of(t *testing.T, h *testhost.Host) (all []string) {
	t.Helper()
	services, _, err := m.consul.Client(m.consul.Management).Catalog().Service("db", "", nil)
	check.NoError(t, err)
	for _, s := range services {
		if s.ServiceMeta["pannier-node"] == h.Name {
			all = append(all, fmt.Sprint("service ", s.ServiceID, " ", s.ModifyIndex))
		}
	}
	for _, token := range m.consul.Tokens(t) {
		if strings.Contains(token.Description, "["+h.Name+"]") {
			all = append(all, fmt.Sprint("token ", token.AccessorID, " ", token.ModifyIndex))
		}
	}
	return all
}

func (m *mesh) awaitLeft(t *testing.T, through *testhost.Host, want map[string]string) {
	t.Helper()
	through.Eventually(fmt.Sprintf("Consul has %v", want), func() error {
		if left := m.left(t); !maps.Equal(left, want) {
			return fmt.Errorf("it has %v", left)
		}
		return nil
	})
}
