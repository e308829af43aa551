package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/xds"
)

// Consul cannot be reached when a workload starts, and when it stops. Volumes are released anyway. The rest
// waits, reports the reason, and finishes when Consul is back.
func TestMeshConsulIsAway(t *testing.T) {
	eachFaultyMode(t, "", func(t *testing.T, m *faultyMesh, spec string) {
		m.proxy.Down()
		starting := m.background("workload", "start", spec)
		m.starting("w")
		m.proxy.Up(t)
		m.ends(starting, 0)
		m.isUp("w")

		m.proxy.Down()
		stopped := m.background("workload", "stop", spec)
		m.stopping("w", `on Consul "default"`, "connection refused")
		m.Kill() // a restart does not lose the pending work
		m.Start()
		m.stopping("w", `on Consul "default"`, "connection refused")
		m.proxy.Up(t)
		m.ends(stopped, 0)
		m.nothingAtAll()

		// The stop cancels the start while Consul is down and nothing can be undone there.
		m.proxy.Down()
		starting = m.background("workload", "start", spec)
		m.starting("w")
		stopped = m.background("workload", "stop", spec)
		m.stopping("w", `on Consul "default"`, "connection refused")
		m.proxy.Up(t)
		m.ends(starting, 1, "given up")
		m.ends(stopped, 0)
		m.nothingAtAll()
	})
}

// starting waits until a workload that waits for Consul has its volumes.
func (m *faultyMesh) starting(id string) {
	m.t.Helper()
	m.Eventually("the workload has all but its services", func() error {
		w, err := m.find(id)
		if err != nil {
			return err
		}
		if w.GetState() != "starting" || len(w.GetMounts()) == 0 {
			return fmt.Errorf("it is %s with the mounts %v", w.GetState(), w.GetMounts())
		}
		return nil
	})
}

// Two of three servers die. A start and a stop wait until there is a leader again, and continue.
func TestMeshConsulHasNoLeader(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{Servers: 3}, minted, "", testhost.LocalDriver(t))
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	m.works(spec)
	m.loseLeader()
	starting := m.background("workload", "start", spec)
	m.awaitRequest(m.asks, m.proxy.Count(m.asks.Method, m.asks.Path)+1)
	m.findLeader()
	m.ends(starting, 0)
	m.isUp("w")
	m.loseLeader()
	stopped := m.background("workload", "stop", spec)
	m.stopping("w", `on Consul "default"`)
	m.findLeader()
	m.ends(stopped, 0)
	m.nothingAtAll()
}

// loseLeader kills all servers except the one that the host uses, and waits until that one has noticed.
func (m *faultyMesh) loseLeader() {
	m.t.Helper()
	m.consul.Kill(1)
	m.consul.Kill(2)
	m.Eventually("there is no leader", func() error {
		leader, err := m.consul.Client(m.consul.Management).Status().Leader()
		if err == nil && leader != "" {
			return fmt.Errorf("the leader is %s", leader)
		}
		return nil
	})
}

func (m *faultyMesh) findLeader() {
	m.t.Helper()
	m.consul.Restart(1, false)
	m.consul.Restart(2, false)
}

// Consul comes back without its data. The operator recreates the host's policies and tokens. Pannier
// registers the service again, and gets a new token for it at the host's next start.
func TestMeshConsulLosesItsState(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, minted, "", testhost.LocalDriver(t))
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	m.Run("workload", "start", spec)
	lost := m.service("w").GetTokenAccessor()
	m.consul.Restart(0, true)
	m.renewFiles()
	m.Eventually("the service is registered again", func() error {
		s := m.service("w")
		if all := m.consul.Services(t); len(all) != 2 || all[s.GetId()] == nil || all[s.GetProxyId()] == nil {
			return fmt.Errorf("Consul has the services %v", all)
		}
		return nil
	})
	m.Kill()
	m.Start()
	m.Eventually("the service has another token", func() error {
		accessor := m.service("w").GetTokenAccessor()
		if accessor == lost || m.siTokens()[accessor] == nil {
			return fmt.Errorf("it has the token %s, Consul has %v", accessor, m.siTokens())
		}
		return nil
	})
	m.Eventually("the bootstrap has the other token", func() error {
		b, err := xds.Read(m.service("w").GetBootstrapFile())
		if err != nil || xds.Token(b) != m.secret(m.service("w")) {
			return fmt.Errorf("it has not: %w", err)
		}
		return nil
	})
	m.isUp("w")
	m.Run("workload", "stop", spec)
	m.nothingAtAll()
}

// renewFiles gives the host new tokens of a Consul that has lost its data, in the same files.
func (m *faultyMesh) renewFiles() {
	m.t.Helper()
	m.consul.Policy(m.t, "node", nodePolicy)
	m.consul.Policy(m.t, "sids", sidsPolicy)
	m.renewFile(m.nodeFile, "node")
	m.renewFile(m.aclFile, "sids")
}

// renewFile replaces the token in a file by a new one with a policy, as an operator does.
func (m *faultyMesh) renewFile(path, policy string) {
	m.t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(m.consul.Token(m.t, policy)+"\n"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		m.t.Fatal(err)
	}
}

// The host's own tokens are revoked. Operations that need them fail at once with an error that names the file
// and the policy, and continue when the file has a new token.
func TestMeshHostsTokensAreRevoked(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, minted, "", testhost.LocalDriver(t))
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	for _, c := range []struct{ name, file, policy, says string }{
		{"node's", m.nodeFile, "node", `service_prefix "" { policy = "write" }`},
		{"sids'", m.aclFile, "sids", `acl = "write"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.in(t)
			m.Run("workload", "start", spec)
			m.revokeFile(c.file)
			stopped := m.background("workload", "stop", spec)
			m.stopping("w", c.file, c.says)
			m.renewFile(c.file, c.policy)
			m.ends(stopped, 0)
			m.nothingAtAll()

			m.revokeFile(c.file)
			r := m.Try("workload", "start", spec)
			if r.Code != 4 || !strings.Contains(r.Stderr, c.file) || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("exit code %d, without %q or %q:\n%s", r.Code, c.file, c.says, r.Stderr)
			}
			m.renewFile(c.file, c.policy)
			m.Run("workload", "stop", "w")
			m.nothingAtAll()
			m.works(spec)
		})
	}
}

// revokeFile revokes the token in a file.
func (m *faultyMesh) revokeFile(path string) {
	m.t.Helper()
	secret, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	token, _, err := m.consul.Client(strings.TrimSpace(string(secret))).ACL().TokenReadSelf(nil)
	if err == nil {
		_, err = m.consul.Client(m.consul.Management).ACL().TokenDelete(token.AccessorID, nil)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// The clocks of the host and of Consul differ. Less than a minute is tolerated. With more, the start reports
// the cause and leaves nothing.
func TestMeshClocksDiffer(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, byLogin, "", testhost.LocalDriver(t))
	skew := skewed(t, m.Host)
	skew(40 * time.Second)
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	m.works(spec)
	m.Stop()
	for _, by := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		skew(by)
		m.Start()
		m.Refused(4, []string{"clocks of this host and of Consul's servers"}, "workload", "start", spec)
		m.nothingAtAll()
		m.Stop()
	}
	skew(0)
	m.Start()
	m.works(spec)
}

// skewed gives a host an agent that signs JWTs by a clock that differs from the machine's by what skew sets.
func skewed(t *testing.T, h *testhost.Host) (skew func(by time.Duration)) {
	t.Helper()
	dir := t.TempDir()
	tokens := filepath.Join(testbin.Root(), "host/internal/consul/tokens")
	source, err := os.ReadFile(filepath.Join(tokens, "jwt.go"))
	must(t, err)
	changed := strings.ReplaceAll(string(source), "time.Now()", "skewed()")
	if changed == string(source) {
		t.Fatal("jwt.go reads no clock")
	}
	replace := map[string]string{}
	for name, text := range map[string]string{"jwt.go": changed, "skewed.go": fmt.Sprintf(`package tokens
		import ("os"; "time")
		func skewed() time.Time {
			text, _ := os.ReadFile(%q)
			by, err := time.ParseDuration(string(text))
			if err != nil {
				panic(err)
			}
			return time.Now().Add(by)
		}`, filepath.Join(dir, "skew"))} {
		replace[filepath.Join(tokens, name)] = filepath.Join(dir, name)
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	h.Agent = filepath.Join(dir, "pannier-agent")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", h.Agent,
		"./"+pannierAgent)
	cmd.Dir = testbin.Root()
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build with another clock: %v\n%s", err, msg)
	}
	return func(by time.Duration) {
		must(t, os.WriteFile(filepath.Join(dir, "skew"), []byte(by.String()), 0o600))
	}
}
