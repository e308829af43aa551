package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/envoy"
	"github.com/pannier/pannier/test/lib/testhost"
)

// takesOver is a workload whose Envoy takes over from itself, and whose program calls it in its first instruction.
const takesOver = `
  exec {
    command = "/bin/sh"
    args    = ["-c", "curl -sS --max-time 9 http://%[3]s/ >%[1]s/first 2>&1; exec sleep 600"]
    user    = "%[2]s"
  }
  sidecar {
    command = ["%[1]s/envoy", "-c", "${bootstrap}", "--base-id", "${base_id}", "--restart-epoch", "${restart_epoch}", "--concurrency", "1", "--log-level", "error"]
  }`

// Tokens and the CA that are replaced under an Envoy are read by the same process, whose stream goes on with them. What
// needs another bootstrap is taken over, three times within seconds. None of it costs a request.
func TestMeshSecretsAreReplacedUnderAnEnvoy(t *testing.T) {
	t.Parallel()
	program := envoy.Program(t, "a token that is replaced under an Envoy")
	m := newMesh(t, minted, "")
	m.open()
	dir := m.envoyBeside(program)

	listen := testhost.FreeAddress(t, "127.0.0.1")
	config := fmt.Sprintf("config {\n  envoy_extra_static_listeners_json = %q\n}", envoy.Static(listen, "hello"))
	cmd := m.Command("workload", "run", m.meshWorkload("w", sidecarService("web", config)+fmt.Sprintf(takesOver, dir, secretsUser, listen)))
	out := &check.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	check.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	m.Eventually("an Envoy that listens", func() error {
		conn, err := net.Dial("tcp", listen)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	admin := m.service("w").GetAdminSocket()
	epoch := func(want int) {
		t.Helper()
		m.Eventually(fmt.Sprintf("the Envoy of epoch %d serves", want), func() error {
			if got, err := envoy.Epoch(admin); err != nil || got != want {
				return fmt.Errorf("epoch %d, %w; output:\n%s", got, err, out)
			}
			return nil
		})
	}
	epoch(0)
	m.Eventually("the program's first call", func() error {
		if text, err := os.ReadFile(dir + "/first"); err != nil || string(text) != "hello" {
			return fmt.Errorf("%q, %w", text, err)
		}
		return nil
	})
	entries := func() *api.ConfigEntries { return m.consul.Client(m.consul.Management).ConfigEntries() }
	sources := 0
	// follows waits until the Envoy has got a change that is made now: its stream is Consul's.
	follows := func(after string) {
		t.Helper()
		before, err := envoy.Stat(admin, "listener_manager.lds.update_success")
		check.NoError(t, err)
		sources++
		_, _, err = entries().Set(&api.ServiceIntentionsConfigEntry{
			Kind: api.ServiceIntentions, Name: "web",
			Sources: []*api.SourceIntention{{Name: fmt.Sprintf("caller-%d", sources), Action: api.IntentionActionAllow}},
		}, nil)
		check.NoError(t, err)
		m.Eventually("the Envoy gets what Consul has, after "+after, func() error {
			now, err := envoy.Stat(admin, "listener_manager.lds.update_success")
			if err == nil && now == before {
				err = errors.New("it has got nothing")
			}
			return err
		})
	}
	follows("the start")
	load := envoy.StartLoad("tcp", listen, 100)
	defer load.End()
	for range 3 {
		before := m.service("w").GetTokenAccessor()
		_, err := m.consul.Client(m.consul.Management).ACL().TokenDelete(before, nil)
		check.NoError(t, err)
		m.Kill()
		m.Start() // which looks after the tokens at once
		m.Eventually("another token", func() error {
			if m.service("w").GetTokenAccessor() == before {
				return errors.New("it is the same")
			}
			return nil
		})
		follows("another token")
	}
	m.consul.ReplaceCA()
	follows("another CA")
	epoch(0)
	if proxy := m.service("w").GetProxy(); proxy.GetRestarts() != 0 || strings.Contains(out.String(), "replaced") {
		t.Errorf("the proxy was started again: %v; output:\n%s", proxy, out)
	}
	for n := range 3 {
		_, _, err := entries().Set(&api.ProxyConfigEntry{
			Kind: api.ProxyDefaults, Name: api.ProxyConfigGlobal, Config: map[string]any{
				"envoy_stats_flush_interval": fmt.Sprintf("%ds", 20+n),
			},
		}, nil)
		check.NoError(t, err)
		epoch(n + 1)
	}
	load.End()
	if failed := load.Failed(); len(failed) > 0 || load.Answers()["hello"] < 100 {
		t.Errorf("%d requests failed, by %v; answers %v; output:\n%s", len(failed), failed, load.Answers(), out)
	}
	check.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	if err := cmd.Wait(); err == nil || err.Error() != "exit status 143" || strings.Contains(out.String(), "killed") {
		t.Errorf("it ended with %v; output:\n%s", err, out)
	}
	_, err := entries().Delete(api.ServiceIntentions, "web", nil)
	check.NoError(t, err)
	m.nothingInMesh()
}
