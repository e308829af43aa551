package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/xds"
)

// faultyMesh is a mesh whose Consul fails as scripted by the test. The host reaches its HTTP API through a
// proxy.
type faultyMesh struct {
	*mesh
	proxy *consul.Proxy
	// nodeFile and aclFile contain the tokens of the host and of sids. With logins, sids also has a token,
	// which it uses to revoke tokens whose secret is lost.
	nodeFile, aclFile string
	// asks matches the request that gets a token from Consul.
	asks consul.Match
}

// newFaultyMesh prepares the host and starts its Consul. consulKeys are added to the agent's consul
// block, and more to its configuration.
func newFaultyMesh(t testing.TB, opts consul.Options, mode, consulKeys, more string) *faultyMesh {
	t.Helper()
	opts.ACL, opts.TLS = true, true
	c := consul.Start(t, opts)
	var aclFile string
	if mode == byLogin {
		c.Policy(t, "sids", sidsPolicy)
		aclFile = c.TokenFile(t, c.Token(t, "sids"))
		more += fmt.Sprintf("plugin \"sids\" {\n  config {\n    token_file = %q\n  }\n}\n", aclFile)
	}
	m := joinMesh(t, c, mode, more)
	if mode == minted {
		aclFile = m.aclTokenFile
	}
	f := &faultyMesh{
		mesh: m, proxy: m.consul.Proxy(t, 0), nodeFile: m.reach.TokenFile, aclFile: aclFile,
		asks: consul.Match{Method: http.MethodPut, Path: "/v1/acl/token"},
	}
	if mode == byLogin {
		f.asks = consul.Match{Method: http.MethodPost, Path: "/v1/acl/login"}
	}
	config, err := os.ReadFile(m.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	direct := fmt.Sprintf("address = %q\n", m.reach.Address)
	m.reach = f.proxy.Service(m.reach)
	through := fmt.Sprintf("address = %q\n  %s\n", m.reach.Address, consulKeys)
	m.Write("agent.hcl", strings.Replace(string(config), direct, through, 1))
	return f
}

// eachFaultyMode runs a test with each way of getting tokens. Each run has a separate Consul and a running
// host with a workload "w", which has a volume and a sidecar.
func eachFaultyMode(t *testing.T, consulKeys string, test func(t *testing.T, m *faultyMesh, spec string)) {
	t.Parallel()
	for _, mode := range []string{minted, byLogin} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newFaultyMesh(t, consul.Options{}, mode, consulKeys, testhost.LocalDriver(t))
			m.open()
			volume(m.Host, drivers[0], "data", "single-node-writer", "")
			test(t, m, m.faultyWorkload("w"))
		})
	}
}

// in reports failures to a subtest until that ends.
func (m *faultyMesh) in(t *testing.T) {
	m.Use(t)
	before := m.t
	m.t = t
	t.Cleanup(func() { m.t = before })
}

// faultyWorkload writes a workload with the volume "data" and a service with a sidecar.
func (m *faultyMesh) faultyWorkload(id string) (spec string) {
	m.t.Helper()
	return m.meshWorkload(id, fmt.Sprintf("  volume %q {\n    source      = %q\n    destination = %q\n  }\n", "data",
		"data", m.Path("mnt"))+sidecarService("web", ""))
}

// works starts and stops a workload, and checks that nothing is left.
func (m *faultyMesh) works(spec string) {
	m.t.Helper()
	m.Run("workload", "start", spec)
	m.isUp("w")
	m.Run("workload", "stop", spec)
	m.nothingAtAll()
}

// isUp checks that a workload's only service is in Consul with one token, which is in its token file and its
// bootstrap.
func (m *faultyMesh) isUp(id string) {
	m.t.Helper()
	s := m.service(id)
	if all := m.consul.Services(m.t); len(all) != 2 || all[s.GetId()] == nil || all[s.GetProxyId()] == nil {
		m.t.Errorf("Consul has the services %v", all)
	}
	if all := m.siTokens(); len(all) != 1 || all[s.GetTokenAccessor()] == nil {
		m.t.Errorf("Consul has the tokens %v, the status tells %s", all, s.GetTokenAccessor())
	}
	m.rightFiles(id)
}

// rightFiles checks that the files of a workload's only service contain its token, or lead to it.
func (m *faultyMesh) rightFiles(id string) {
	m.t.Helper()
	s := m.service(id)
	token, _ := m.identityOf(s.GetTokenAccessor())
	if m.secret(s) != token.SecretID {
		m.t.Error("the token's file does not contain its secret")
	}
	hasMode(m.t, s.GetTokenFile(), 0o400, secretsUID)
	hasMode(m.t, s.GetBootstrapFile(), 0o400, secretsUID)
	if b, err := xds.Read(s.GetBootstrapFile()); err != nil || xds.Token(b) != token.SecretID {
		m.t.Errorf("the bootstrap does not lead to the token: %v", err)
	}
}

// nothingAtAll checks that nothing is left of services and their checks, after one sweep.
func (m *faultyMesh) nothingAtAll() {
	m.t.Helper()
	m.Run("token", "sweep")
	m.nothingInMesh()
	checks, err := m.consul.Client(m.consul.Management).Agent().Checks()
	if err != nil || len(checks) > 0 {
		m.t.Errorf("Consul has the checks %v: %v", checks, err)
	}
}

// hang holds a request until its caller leaves. Consul never receives it.
func hang(_ *consul.Proxy, _ http.ResponseWriter, r *http.Request, lifted <-chan struct{}) {
	select {
	case <-r.Context().Done():
	case <-lifted:
	}
	panic(http.ErrAbortHandler)
}

// awaitRequest waits until a request was made n times.
func (m *faultyMesh) awaitRequest(of consul.Match, n int) {
	m.t.Helper()
	m.Eventually("the request comes", func() error {
		if got := m.proxy.Count(of.Method, of.Path); got < n {
			return fmt.Errorf("%s %s was made %d times, want %d", of.Method, of.Path, got, n)
		}
		return nil
	})
}

// background runs a command of the CLI, and delivers its result at its end.
func (m *faultyMesh) background(args ...string) <-chan testhost.Result {
	m.t.Helper()
	cmd := m.Command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	done, ended := make(chan testhost.Result, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
		done <- testhost.Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
	}()
	m.t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	return done
}

// ends waits for a command to end, and checks its exit code and that its output contains each of the words.
func (m *faultyMesh) ends(done <-chan testhost.Result, code int, words ...string) {
	m.t.Helper()
	var r testhost.Result
	m.Eventually("the command ends", func() error {
		select {
		case r = <-done:
			return nil
		default:
			return errors.New("it goes on")
		}
	})
	if r.Code != code {
		m.t.Fatalf("exit code %d, want %d\n%s%s\n%s", r.Code, code, r.Stdout, r.Stderr, m.LogTail())
	}
	for _, w := range words {
		if !strings.Contains(r.Stdout+r.Stderr, w) {
			m.t.Errorf("it does not say %q:\n%s%s", w, r.Stdout, r.Stderr)
		}
	}
}

// stopping waits until a workload waits to be released, with a message that contains each of the
// words, and its volumes are free.
func (m *faultyMesh) stopping(id string, words ...string) {
	m.t.Helper()
	m.Eventually("the workload waits, and its volumes do not", func() error {
		w, err := m.find(id)
		if err != nil {
			return err
		}
		for _, word := range words {
			if !strings.Contains(w.GetMessage(), word) {
				return fmt.Errorf("it says %q, not %q", w.GetMessage(), word)
			}
		}
		s, err := m.Status()
		if err != nil {
			return err
		}
		if w.GetState() != "stopping" || s.GetClaims() > 0 {
			return fmt.Errorf("it is %s, with %d claims", w.GetState(), s.GetClaims())
		}
		return nil
	})
}

// find asks the agent for a workload, which may not exist yet.
func (m *faultyMesh) find(id string) (*hostv1.Workload, error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Wait)
	defer cancel()
	answer, err := m.Client().Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Id: id})
	if err != nil {
		return nil, err
	}
	return answer.GetWorkload(), nil
}

// noGoroutineOf ends the agent with a dump of its goroutines, and checks that none belongs to a
// workload.
func (m *faultyMesh) noGoroutineOf(words ...string) {
	m.t.Helper()
	before, err := os.Stat(m.Path("agent.log"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.Dump()
	log, err := os.ReadFile(m.Path("agent.log"))
	if err != nil {
		m.t.Fatal(err)
	}
	dump := string(log[before.Size():])
	if !strings.Contains(dump, "goroutine 1 ") {
		m.t.Fatalf("the agent did not tell its goroutines:\n%s", dump)
	}
	for _, one := range strings.Split(dump, "\n\n") {
		for _, word := range words {
			if strings.Contains(one, word) {
				m.t.Errorf("this goroutine is left:\n%s", one)
			}
		}
	}
}
