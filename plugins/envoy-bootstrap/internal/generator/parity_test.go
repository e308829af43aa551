package generator

import (
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/envoy"
)

// TestParity generates the bootstrap of every row with our code and with Consul's own command. They may
// differ only as listed in the table of differences, and every entry of that table must be needed by a row.
func TestParity(t *testing.T) {
	used := map[string][]string{} // the rows that need a difference
	made := map[string][]byte{}   // our bootstraps by row
	for _, on := range []struct {
		name string
		opts consul.Options
		rows []row
	}{
		{"plain", consul.Options{}, plainRows(t)},
		{"acl and tls", consul.Options{ACL: true, TLS: true, PlainGRPC: true}, secureRows()},
	} {
		t.Run(on.name, func(t *testing.T) {
			c := consul.Start(t, on.opts)
			for _, r := range on.rows {
				t.Run(r.name, func(t *testing.T) { made[r.name] = r.compare(t, c, used) })
			}
		})
	}
	if len(made) < 40 {
		t.Errorf("%d rows, want 40 or more", len(made))
	}
	if !t.Failed() {
		for _, d := range differences {
			if len(used[d.name]) == 0 {
				t.Errorf("no row needs the difference %q", d.name)
			}
		}
		checkCases(t, made, used)
	}
	t.Run("envoy", func(t *testing.T) { validateAll(t, made) })
}

// warnings are those of bootstraps that Envoy accepts: tracing and TLS for Prometheus are as Consul's command makes
// them, and a template may have fields of a later Envoy.
var warnings = regexp.MustCompile(`Bootstrap\.tracing' from|default of not requiring client cert|Unknown field`)

// validateAll loads each row's bootstrap by a real Envoy.
func validateAll(t *testing.T, made map[string][]byte) {
	program := envoy.Program(t, "bootstraps are accepted by Envoy")
	for name, text := range made {
		var flags []string
		if name == "template of fields that nobody knows" {
			flags = []string{"--allow-unknown-static-fields"}
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reported, err := envoy.Validate(t, program, text, flags...)
			if err != nil {
				t.Errorf("%v\n%s", err, text)
			}
			for line := range strings.Lines(reported) {
				if !warnings.MatchString(line) {
					t.Error(line)
				}
			}
		})
	}
}

// row is one configuration, used for both sides.
type row struct {
	name    string
	service *api.AgentServiceRegistration
	// defaults are the proxy-defaults for the row.
	defaults *api.ProxyConfigEntry
	env      map[string]string
	// token makes the proxy's token; nil: it has none.
	token func(*testing.T, *consul.Cluster) string
	// consul changes how Consul is reached.
	consul func(*service.Consul)
	// flags are the command's additional flags, and own the keys of the proxy's configuration that stand for some of
	// them; Consul ignores these.
	flags []string
	own   map[string]any
	// by changes how the command gets its input.
	by    func(cmd *exec.Cmd, secret, tokenFile string)
	admin bootstrap.Bind
	ready bootstrap.Bind
}

// compare returns our bootstrap of the row.
func (r row) compare(t *testing.T, c *consul.Cluster, used map[string][]string) (ours []byte) {
	for name, value := range r.env {
		t.Setenv(name, value)
	}
	r.setDefaults(t, c)
	if r.own != nil {
		all := maps.Clone(r.own)
		maps.Copy(all, r.service.Proxy.Config)
		r.service.Proxy.Config = all
	}
	register(t, c, r.service)
	r.settle(t, c)
	var secret, tokenFile string
	if r.token != nil {
		secret = r.token(t, c)
		tokenFile = c.TokenFile(t, secret)
	}
	at := c.Service("default", "")
	if r.consul != nil {
		r.consul(&at)
	}
	admin := r.admin
	if admin.Port == 0 {
		admin = bootstrap.Bind{Address: "127.0.0.2", Port: 19001}
	}
	ours, err := generate(t, at, bootstrap.Request{
		ProxyID: r.service.ID, TokenFile: tokenFile, Admin: admin,
		Ready: r.ready,
	}, secret)
	if err != nil {
		t.Fatal(err)
	}
	theirs := r.command(t, c, at, secret, tokenFile, admin)
	if theirs == nil {
		name := explain(r.name, "transport_socket.validation_context.trusted_ca.inline_string")
		used[name] = append(used[name], r.name)
		return
	}
	for _, d := range diffBootstraps(t, theirs, ours) {
		if name := explain(r.name, d.path); name != "" {
			used[name] = append(used[name], r.name)
			continue
		}
		t.Errorf("%s\nConsul: %v\nours:   %v", d.path, d.theirs, d.ours)
	}
	return ours
}

// command returns the output of Consul's own command.
func (r row) command(t *testing.T, c *consul.Cluster, at service.Consul, secret, tokenFile string,
	admin bootstrap.Bind,
) []byte {
	t.Helper()
	args := []string{
		"connect", "envoy", "-bootstrap", "-proxy-id", r.service.ID,
		"-admin-bind", net.JoinHostPort(admin.Address, strconv.Itoa(admin.Port)),
	}
	for flag, value := range map[string]string{
		"-grpc-addr": at.GRPCAddress, "-grpc-ca-file": at.GRPCCAFile, "-ca-file": at.CAFile,
	} {
		if info, err := os.Stat(value); err == nil && info.IsDir() {
			flag = strings.Replace(flag, "-file", "-path", 1)
		}
		if value != "" {
			args = append(args, flag, value)
		}
	}
	if r.ready.Port != 0 {
		args = append(args, "-envoy-ready-bind-address", r.ready.Address, "-envoy-ready-bind-port",
			strconv.Itoa(r.ready.Port))
	}
	cmd := c.Command(secret, append(args, r.flags...)...)
	if r.by != nil {
		r.by(cmd, secret, tokenFile)
	}
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			if strings.Contains(string(exit.Stderr), "no CA certificates are available") {
				return nil // Consul 1.22 refuses what 1.19 printed with an empty CA
			}
			t.Logf("%s", exit.Stderr)
		}
		t.Fatalf("consul connect envoy: %v", err)
	}
	return out
}

func (r row) setDefaults(t *testing.T, c *consul.Cluster) {
	t.Helper()
	if r.defaults == nil {
		return
	}
	r.defaults.Kind, r.defaults.Name = api.ProxyDefaults, api.ProxyConfigGlobal
	entries := c.Client(c.Management).ConfigEntries()
	if _, _, err := entries.Set(r.defaults, nil); err != nil {
		t.Fatalf("write the proxy-defaults: %v", err)
	}
	t.Cleanup(func() {
		if _, err := entries.Delete(api.ProxyDefaults, api.ProxyConfigGlobal, nil); err != nil {
			t.Error(err)
		}
	})
}

// settle waits until the agent has merged the proxy-defaults of this row, and of no other one, into the
// registration.
func (r row) settle(t *testing.T, c *consul.Cluster) {
	t.Helper()
	want, logs := map[string]any{}, &api.AccessLogsConfig{}
	if r.defaults != nil {
		maps.Copy(want, r.defaults.Config)
		if r.defaults.AccessLogs != nil {
			logs = r.defaults.AccessLogs
		}
	}
	maps.Copy(want, r.service.Proxy.Config)
	agent := c.Client(c.Management).Agent()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s, _, err := agent.Service(r.service.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Proxy.AccessLogs
		if got == nil {
			got = &api.AccessLogsConfig{}
		}
		if *got == *logs && asJSON(t, s.Proxy.Config) == asJSON(t, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent has %v and %+v, want %v and %+v", s.Proxy.Config, got, want, logs)
		}
	}
}

func asJSON(t *testing.T, config map[string]any) string {
	t.Helper()
	if len(config) == 0 {
		return ""
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// configured returns rows of a sidecar with one proxy configuration each.
func configured(configs map[string]map[string]any) []row {
	var rows []row
	for name, config := range configs {
		rows = append(rows, row{name: name, service: sidecar("web-1-sidecar-proxy", config)})
	}
	return rows
}

func plainRows(t *testing.T) []row {
	web := func() *api.AgentServiceRegistration { return sidecar("web-1-sidecar-proxy", nil) }
	address := func(name, address string, flags ...string) row {
		return row{name: name, service: web(), consul: func(c *service.Consul) { c.GRPCAddress = address }, flags: flags}
	}
	rows := []row{
		{name: "sidecar", service: web()},
		{name: "sidecar with pannier's id", service: sidecar("pannier:host-1:default:mysql:web-sidecar-proxy", nil)},
		{name: "sidecar of a service that is not there", service: &api.AgentServiceRegistration{
			Kind: api.ServiceKindConnectProxy, ID: "lonely", Name: "lonely", Port: 1,
			Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "gone"},
		}},
		{name: "ready", service: web(), ready: bootstrap.Bind{Address: "127.0.0.3", Port: 19002}},
		{name: "ready on every address", service: web(), ready: bootstrap.Bind{Address: "0.0.0.0", Port: 19002}},
		{name: "admin on localhost", service: web(), admin: bootstrap.Bind{Address: "localhost", Port: 19000}},
		{
			name: "admin on IPv6", service: web(), admin: bootstrap.Bind{Address: "::1", Port: 19000},
			ready: bootstrap.Bind{Address: "127.0.0.1", Port: 19002},
		},
		address("xds by host and port", "127.0.0.1:8502"),
		address("xds by http", "http://127.0.0.1:8502"),
		address("xds by name", "localhost:8502"),
		address("xds by IPv6", "[::1]:8502"),
		address("xds by socket", "unix:///run/consul/grpc.sock"),
		address("xds of the agent", ""),
		address("xds with TLS and no CA", "https://127.0.0.1:8503"),
		{name: "xds with TLS and the CA of HTTP", service: web(), consul: func(c *service.Consul) {
			c.GRPCAddress, c.CAFile = "https://127.0.0.1:8503", "testdata/ca.pem"
		}},

		{
			name: "ingress gateway", service: gateway(api.ServiceKindIngressGateway, "in-1", "edge", nil),
			flags: []string{"-gateway", "ingress", "-service", "edge"}, ready: bootstrap.Bind{
				Address: "127.0.0.1",
				Port:    19002,
			},
		},
		{
			name: "ingress gateway without ready", service: gateway(api.ServiceKindIngressGateway, "in-1", "edge", nil),
			flags: []string{"-gateway", "ingress", "-service", "edge"},
		},
		{
			name: "terminating gateway", service: gateway(api.ServiceKindTerminatingGateway, "out-1", "legacy", nil),
			flags: []string{"-gateway", "terminating", "-service", "legacy"},
		},
		{
			name: "mesh gateway", service: gateway(api.ServiceKindMeshGateway, "mesh-1", "mesh", nil),
			flags: []string{"-gateway", "mesh", "-service", "mesh"},
		},
		{
			name: "api gateway", service: gateway(api.ServiceKindAPIGateway, "api-1", "api", nil),
			flags: []string{"-gateway", "api", "-service", "api"},
		},
		{
			name: "gateway found by its kind", service: gateway(api.ServiceKindMeshGateway, "mesh", "mesh", nil),
			flags: []string{"-proxy-id=", "-gateway", "mesh"},
		},
		{name: "gateway by id alone", service: gateway(api.ServiceKindMeshGateway, "mesh-1", "mesh", nil)},
		{
			name: "ingress gateway with metrics", flags: []string{"-gateway", "ingress", "-service", "edge"},
			service: gateway(api.ServiceKindIngressGateway, "in-1", "edge",
				map[string]any{"envoy_prometheus_bind_addr": "0.0.0.0:9102", "envoy_stats_tags": []string{"kind=edge"}}),
			ready: bootstrap.Bind{Address: "127.0.0.1", Port: 19002},
		},

		{
			name: "statsd from the environment",
			service: sidecar("p",
				map[string]any{"envoy_statsd_url": "$PANNIER_TEST_STATSD"}),
			env: map[string]string{"PANNIER_TEST_STATSD": "udp://10.1.2.3:8125"},
		},
		{
			name: "statsd on the host", service: sidecar("p", map[string]any{"envoy_statsd_url": "udp://${HOST_IP}:8125"}),
			env: map[string]string{"HOST_IP": "10.1.2.4"},
		},
		{
			name: "dogstatsd from the environment",
			service: sidecar("p",
				map[string]any{"envoy_dogstatsd_url": "$PANNIER_TEST_STATSD"}),
			env: map[string]string{"PANNIER_TEST_STATSD": "unix:///run/dog.sock"},
		},

		{
			name: "proxy-defaults", service: web(),
			defaults: &api.ProxyConfigEntry{Config: map[string]any{
				"envoy_prometheus_bind_addr": "0.0.0.0:9102",
				"envoy_statsd_url":           "udp://127.0.0.1:9125",
			}},
		},
		{
			name: "registration over proxy-defaults", service: sidecar("p",
				map[string]any{"envoy_statsd_url": "udp://127.0.0.1:1"}),
			defaults: &api.ProxyConfigEntry{Config: map[string]any{
				"envoy_prometheus_bind_addr": "0.0.0.0:9102",
				"envoy_statsd_url":           "udp://127.0.0.1:2",
			}},
		},
		{
			name: "gateway under proxy-defaults", service: gateway(api.ServiceKindTerminatingGateway, "out-1", "legacy",
				nil), flags: []string{"-gateway", "terminating", "-service", "legacy"},
			defaults: &api.ProxyConfigEntry{
				Config:     map[string]any{"envoy_stats_bind_addr": "0.0.0.0:9103"},
				AccessLogs: &api.AccessLogsConfig{Enabled: true},
			},
		},
	}
	for name, logs := range map[string]*api.AccessLogsConfig{
		"access logs":     {Enabled: true},
		"access logs off": {Enabled: false, Type: api.StdErrLogSinkType},
		"access logs on stdout": {
			Enabled: true, Type: api.StdOutLogSinkType,
			JSONFormat: `{"at": "%START_TIME%", "deep": {"n": 1.5, "list": ["%DURATION%", true, null]}}`,
		},
		"access logs on stderr":   {Enabled: true, Type: api.StdErrLogSinkType, TextFormat: "%START_TIME% <%PROTOCOL%>"},
		"access logs with a line": {Enabled: true, TextFormat: "%START_TIME%\n"},
		"access logs in a file":   {Enabled: true, Type: api.FileLogSinkType, Path: "/var/log/envoy.log"},
	} {
		rows = append(rows, row{name: name, service: web(), defaults: &api.ProxyConfigEntry{AccessLogs: logs}})
	}
	rows = append(rows, configured(keyConfigs())...)
	return append(rows, flagRows(t, t.TempDir())...)
}

func secureRows() []row {
	web := func() *api.AgentServiceRegistration { return sidecar("web-1-sidecar-proxy", nil) }
	return []row{
		{name: "sidecar with a token", service: web(), token: identity("web")},
		{
			name: "xds without TLS", service: web(), token: identity("web"),
			consul: func(c *service.Consul) { c.GRPCAddress = "127.0.0.1:8502" },
		},
		{
			name: "xds with a CA of its own", service: web(), token: identity("web"),
			consul: func(c *service.Consul) { c.GRPCCAFile = "testdata/ca.pem" },
		},
		{
			name: "xds by name with TLS", service: web(), token: identity("web"),
			consul: func(c *service.Consul) { c.GRPCAddress = "https://localhost:8503" },
		},
		{
			name: "xds of the agent with TLS", service: web(), token: agentReader,
			consul: func(c *service.Consul) { c.GRPCAddress = "" },
		},
		{
			name: "xds of an agent that the token may not read", service: web(), token: identity("web"),
			consul: func(c *service.Consul) { c.GRPCAddress = "" },
		},
		{
			name: "xds socket without TLS", service: web(), token: identity("web"),
			consul: func(c *service.Consul) { c.GRPCAddress = "unix:///run/consul/grpc.sock" },
		},
		{name: "xds socket with TLS", service: web(), token: identity("web"), consul: func(c *service.Consul) {
			c.GRPCAddress, c.GRPCCAFile = "unix:///run/consul/grpc.sock", "testdata/ca.pem"
		}},
		{
			name: "template with a token and TLS",
			service: sidecar("web-1-sidecar-proxy",
				map[string]any{"envoy_bootstrap_json_tpl": wholeTemplate}), token: identity("web"),
		},
		{
			name: "ready and metrics with a token",
			service: sidecar("web-1-sidecar-proxy",
				map[string]any{"envoy_prometheus_bind_addr": "0.0.0.0:9102"}), token: identity(
				"web"), ready: bootstrap.Bind{Address: "127.0.0.1", Port: 19002},
		},
		{
			name: "mesh gateway with a token", service: gateway(api.ServiceKindMeshGateway, "mesh-1", "mesh", nil),
			token: identity("mesh"), flags: []string{"-gateway", "mesh", "-service", "mesh"},
		},
		{
			name: "terminating gateway with a token", token: identity("legacy"), flags: []string{
				"-gateway", "terminating",
				"-service", "legacy",
			},
			service: gateway(api.ServiceKindTerminatingGateway, "out-1", "legacy",
				map[string]any{"envoy_stats_bind_addr": "127.0.0.1:9103"}),
		},
		{
			name: "ingress gateway with a token", token: identity("edge"), flags: []string{
				"-gateway", "ingress", "-service",
				"edge",
			},
			service: gateway(api.ServiceKindIngressGateway, "in-1", "edge", nil), ready: bootstrap.Bind{
				Address: "127.0.0.1",
				Port:    19002,
			},
		},
	}
}

// identity makes a token with the identity of a service, like those of proxies.
func identity(name string) func(*testing.T, *consul.Cluster) string {
	return func(t *testing.T, c *consul.Cluster) string {
		t.Helper()
		token, _, err := c.Client(c.Management).ACL().TokenCreate(&api.ACLToken{
			Local: true, ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: name}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return token.SecretID
	}
}

// agentReader makes a token that may ask the agent for its ports.
func agentReader(t *testing.T, c *consul.Cluster) string {
	t.Helper()
	c.Policy(t, "agent-reader", `agent_prefix "" { policy = "read" } service_prefix "" { policy = "read" }`)
	return c.Token(t, "agent-reader")
}
