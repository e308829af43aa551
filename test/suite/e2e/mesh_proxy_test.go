package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/envoy"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testprometheus"
)

// rejectedListener is one of a service's own that Consul passes on and Envoy rejects: it leads nowhere.
const rejectedListener = `config {
  envoy_public_listener_json = <<JSON
{"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "public_listener:127.0.0.1:1",
 "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
 "filter_chains": [{"filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config":
  {"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": "x"}}]}]}
JSON
}`

// An Envoy in trouble is the message of its workload, with the reason, and one that is well has none.
func TestMeshProxyInTrouble(t *testing.T) {
	t.Parallel()
	program := envoy.Program(t, "the state of an Envoy")
	m := newMesh(t, minted, "")
	m.open()
	dir := m.envoyBeside(program)
	const flags = "--disable-hot-restart --concurrency 1"
	static := fmt.Sprintf("config {\n  envoy_extra_static_listeners_json = %q\n}",
		envoy.Static(testhost.FreeAddress(t, "127.0.0.1"), "hello"))
	cases := map[string]struct{ config, script, state, message, exit string }{
		"well": {static, "exec $E -c $0 " + flags, "ready", "", ""},
		"flag": {
			"", "exec $E -c $0 --no-such-flag", "failing", "the proxy has not been ready since",
			"it ended with exit code 1: PARSE ERROR: Argument: --no-such-flag",
		},
		"ca": {
			"", "sed 's,envoy_consul_ca,gone,' $0 >b && exec $E -c b " + flags, "failing",
			"the proxy has not been ready since", "it ended with exit code 1: ",
		},
		"xds": {
			"", "sed 's/\"port_value\": *[0-9]*/\"port_value\": 1/' $0 >b && exec $E -c b " + flags, "failing",
			"the proxy has had no connection to Consul (xDS) since", "",
		},
		"shared": {
			static, "exec $E -c $0 " + flags, "failing",
			`its listener "static" gets connections of another workload: the port is taken: `, "",
		},
		"rejected": {
			rejectedListener, "exec $E -c $0 " + flags, "failing", "the proxy rejects listeners that Consul has sent", "",
		},
	}
	outputs := map[string]*check.Buffer{}
	start := func(id, config, script string) {
		script = "cd " + dir + "; mkdir -p " + id + "; cd " + id + "; E=../envoy; " + script
		cmd := m.Command("workload", "run", m.meshWorkload(id, sidecarService(id, config)+fmt.Sprintf(`
  exec {
    command = "sleep"
    args    = ["600"]
    user    = %q
  }
  sidecar {
    command = ["sh", "-c", %q, "${bootstrap}"]
  }`, secretsUser, script)))
		outputs[id] = &check.Buffer{}
		cmd.Stdout, cmd.Stderr = outputs[id], outputs[id]
		check.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Signal(unix.SIGTERM)
			_ = cmd.Wait()
		})
	}
	await := func(id string) {
		c := cases[id]
		m.Eventually("the state of the proxy of "+id, func() error {
			got, err := m.Client().Workloads.GetWorkload(t.Context(), &hostv1.GetWorkloadRequest{Id: id})
			if err != nil {
				return err
			}
			w := got.GetWorkload()
			p := w.GetServices()[0].GetProxy()
			if p.GetState() != c.state || !strings.Contains(w.GetMessage(), c.message) ||
				(c.message == "") != (w.GetMessage() == "") || !strings.HasPrefix(p.GetLastExit(), c.exit) {
				return fmt.Errorf("%v: %s; output:\n%.3000s", p, w.GetMessage(), outputs[id])
			}
			return nil
		})
	}
	start("well", cases["well"].config, cases["well"].script)
	await("well") // it has the port first
	for id, c := range cases {
		if id != "well" {
			start(id, c.config, c.script)
		}
	}
	for id := range cases {
		await(id)
	}
	s, err := m.Status()
	check.NoError(t, err)
	p := testprometheus.Start(t, testprometheus.Here, "http", s.GetHttpAddress())
	p.Await(m.Eventually, "PannierProxyFails")
}
