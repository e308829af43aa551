package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Consul refuses a start for certain: its certificate is of another CA, or the token of sids may not write ACLs. The
// start fails and leaves nothing, also no release that waits for what Consul never made; corrected, it works.
func TestMeshRefusedStart(t *testing.T) {
	eachFaultyMode(t, "", func(t *testing.T, m *faultyMesh, spec string) {
		m.works(spec)
		refused := func(says string) {
			t.Helper()
			for range 2 { // the second does not wait for the first
				m.Refused(4, []string{says, "was undone", "nothing of the workload is left"}, "workload", "start", spec)
				if w, err := m.find("w"); err != nil || w.GetState() != "failed" {
					t.Errorf("it is %s: %s, %v", w.GetState(), w.GetMessage(), err)
				}
				if left := m.ledgerTokens(); len(left) > 0 {
					t.Errorf("the ledger has the tokens %q", left)
				}
			}
		}
		config, err := os.ReadFile(m.Path("agent.hcl"))
		check.NoError(t, err)
		right, err := os.ReadFile(m.reach.CAFile)
		check.NoError(t, err)
		m.Run("tls", "ca", "create", "-dir", m.Dir) // of another cluster
		m.Run("agent", "stop", "-plugins")          // whose connections go on
		m.AwaitEnd()
		m.Write("agent.hcl", strings.ReplaceAll(string(config), m.reach.CAFile, m.Path("ca.pem")))
		m.Start()
		refused("certificate signed by unknown authority")
		m.Write("ca.pem", string(right))
		m.works(spec)

		if m.reach.AuthMethod == "" {
			m.renewFile(m.aclFile, "node")
			refused(`acl = "write"`)
			m.renewFile(m.aclFile, "sids")
			m.works(spec)
		}
	})
}

// The consul block is gone while a workload runs. Its release says what ends it, and so does a start that waits for
// that. Forced, it leaves what is in Consul, which is removed when the block is back.
func TestMeshConsulBlockIsGone(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, minted, "", testhost.LocalDriver(t))
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	m.Run("workload", "start", spec)
	accessor := m.service("w").GetTokenAccessor()
	with, err := os.ReadFile(m.Path("agent.hcl"))
	check.NoError(t, err)
	before, rest, _ := strings.Cut(string(with), "consul {")
	_, after, found := strings.Cut(rest, "\n}\n")
	if !found {
		t.Fatalf("no consul block is in\n%s", with)
	}
	m.Stop()
	m.Write("agent.hcl", before+after)
	m.Start()

	const force = "pannier workload stop -force w"
	stopped := m.background("workload", "stop", spec)
	m.stopping("w", "no consul block")
	if shown := m.Run("workload", "status", "w"); !strings.Contains(shown, force) {
		t.Errorf("the status does not say %q:\n%s", force, shown)
	}
	said, err := os.Create(m.Path("start.out"))
	check.NoError(t, err)
	defer said.Close()
	waits := m.Command("workload", "start", spec)
	waits.Stdout, waits.Stderr = said, said
	check.NoError(t, waits.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = waits.Wait() // the exit code is asked for below
	}()
	t.Cleanup(func() { _ = waits.Process.Kill(); <-ended })
	says := func(words ...string) error {
		out, err := os.ReadFile(said.Name())
		check.NoError(t, err)
		for _, word := range words {
			if !strings.Contains(string(out), word) {
				return fmt.Errorf("it says %q, not %q", out, word)
			}
		}
		return nil
	}
	m.Eventually("the start says what it waits for", func() error {
		return says("await ... running", "is still being released, since", force)
	})
	ctx, leave := context.WithCancel(t.Context())
	stream, err := m.Client().Workloads.StartWorkload(ctx, &hostv1.StartWorkloadRequest{
		Spec: m.workload("w").GetSpec(),
	})
	check.NoError(t, err)
	if !stream.Receive() || !strings.Contains(stream.Msg().GetStep().GetNote(), "is still being released, since") {
		t.Errorf("a start that waits says %v, %v", stream.Msg(), stream.Err())
	}
	leave()
	_ = stream.Close() // its context has ended

	m.Run("workload", "stop", "-force", spec)
	m.ends(stopped, 0)
	m.Eventually("the start ends", func() error {
		select {
		case <-ended:
			return nil
		default:
			return says("it ended")
		}
	})
	if code := waits.ProcessState.ExitCode(); code != 4 {
		t.Errorf("the start that waited ended with %d", code)
	}
	check.NoError(t, says("no such consul block"))
	if out := m.Run("events"); !strings.Contains(out, "left-behind") || !strings.Contains(out, accessor) {
		t.Errorf("no event has the token %s:\n%s", accessor, out)
	}
	if out := m.Run("token", "list"); !strings.Contains(out, accessor) {
		t.Errorf("the ledger does not have the token %s:\n%s", accessor, out)
	}
	if m.siTokens()[accessor] == nil || len(m.consul.Services(t)) != 2 {
		t.Errorf("Consul has the tokens %v and the services %v", m.siTokens(), m.consul.Services(t))
	}
	m.Stop()
	m.Write("agent.hcl", string(with))
	m.Start()
	m.nothingAtAll()
	m.works(spec)
}

// Consul refuses the logins. The start of a workload leaves no record of a token, nor does one that ran meanwhile and
// could not get a replacement. sids has no token of its own that could revoke one.
func TestMeshRefusedLogin(t *testing.T) {
	t.Parallel()
	const refused = "no binding rule of the auth method gives this workload a service identity"
	m := newMesh(t, byLogin, "")
	m.open()
	spec := m.meshWorkload("w", sidecarService("web", ""))
	m.Run("workload", "start", spec)
	acl := m.consul.Client(m.consul.Management).ACL()
	rules, _, err := acl.BindingRuleList(m.reach.AuthMethod, nil)
	check.NoError(t, err)
	for _, r := range rules {
		_, err := acl.BindingRuleDelete(r.ID, nil)
		check.NoError(t, err)
	}
	_, err = acl.TokenDelete(m.service("w").GetTokenAccessor(), nil)
	check.NoError(t, err)
	m.Stop()
	m.Start() // a host that was away looks at its tokens at once
	m.Eventually("the replacement is refused", func() error {
		if says := m.service("w").GetMessage(); !strings.Contains(says, refused) {
			return fmt.Errorf("it says %q", says)
		}
		return nil
	})
	m.Run("workload", "stop", spec)
	m.nothingInMesh()
	m.Refused(4, []string{refused, "was undone", "nothing of the workload is left"}, "workload", "start", spec)
	m.nothingInMesh()
	for _, args := range [][]string{{"workload", "start", spec}, {"workload", "status", "w"}} {
		r := m.Try(args...)
		for _, once := range []string{refused, `Consul "default"`, `identify service "web"`} {
			if n := strings.Count(r.Stdout+r.Stderr, once); n != 1 {
				t.Errorf("pannier %q says %q %d times:\n%s%s", args, once, n, r.Stdout, r.Stderr)
			}
		}
	}
}

// The state of a token is what Consul says now, not what the host saw when it looked.
func TestMeshTokenInspect(t *testing.T) {
	eachFaultyMode(t, "", func(t *testing.T, m *faultyMesh, spec string) {
		m.Run("workload", "start", spec)
		accessor := m.service("w").GetTokenAccessor()
		if out := m.Run("token", "inspect", "w"); !strings.Contains(out, accessor) || !strings.Contains(out, "valid") {
			t.Errorf("a valid token is shown as\n%s", out)
		}
		m.proxy.Down()
		m.Refused(1, []string{accessor, "unknown", "connection refused", "could not be looked up"}, "token", "inspect", spec)
		m.proxy.Up(t)
		_, err := m.consul.Client(m.consul.Management).ACL().TokenDelete(accessor, nil)
		check.NoError(t, err)
		m.Refused(1, []string{accessor, "gone", "a token is not known to Consul"}, "token", "inspect", "w")
		m.Run("workload", "stop", spec)
		m.nothingAtAll()
	})
}
