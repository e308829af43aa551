package generator

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/consul"
)

// consulCases are the cases of the test of its command that Consul 1.19 and 1.22 have, by their names there, and the
// row with such an input. A case without a row is not the same here, with the reason.
var consulCases = []struct{ name, row, reason string }{
	{name: "defaults", row: "sidecar"},
	{name: "defaults-nodemeta", row: "node name"},
	{name: "prometheus-metrics", row: "prometheus with a backend"},
	{name: "prometheus-metrics-tls-ca-file", row: "prometheus with TLS"},
	{name: "prometheus-metrics-tls-ca-path", row: "prometheus with TLS by a directory"},
	{name: "token-arg", row: "token by a flag"},
	{name: "token-env", row: "token by the environment"},
	{name: "token-file-arg", row: "token by a file"},
	{name: "token-file-env", row: "token by the name of a file"},
	{name: "grpc-addr-flag", row: "xds by name"},
	{name: "grpc-addr-env", row: "xds by the environment"},
	{name: "grpc-addr-unix", row: "xds by socket"},
	{name: "grpc-addr-unix-with-tls", row: "xds socket with TLS"},
	{name: "xds-addr-config", row: "xds of the agent"},
	{
		name:   "grpc-tls-addr-config",
		reason: "without a CA the command prints an empty one, so that the proxy gives its token to any server; here it is the mesh's",
	},
	{name: "deprecated-grpc-addr-config", reason: "a Consul agent before 1.11 does not say its xDS port as later ones: set grpc_address"},
	{name: "access-log-path", row: "admin's log at a path"},
	{name: "existing-ca-file", row: "xds with a CA of its own"},
	{name: "existing-ca-path", row: "xds with TLS and a directory of CAs"},
	{name: "custom-bootstrap", row: "template of fields that nobody knows"},
	{name: "extra_-single", row: "one of everything"},
	{name: "extra_-multiple", row: "two of everything"},
	{name: "stats-config-override", reason: "its input is no configuration of Envoy: it is refused, with the key and the field"},
	{name: "zipkin-tracing-config", reason: "its input is no configuration of Envoy: it is refused, with the key and the field"},
	{name: "CONSUL_HTTP_ADDR-with-https-scheme-does-not-affect-grpc-tls", row: "xds without TLS"},
	{name: "CONSUL_GRPC_ADDR-with-https-scheme-enables-tls", row: "xds with TLS and the CA of HTTP"},
	{name: "both-CONSUL_HTTP_ADDR-TLS-and-CONSUL_GRPC_ADDR-PLAIN-is-plain", row: "xds without TLS"},
	{name: "both-CONSUL_HTTP_ADDR-PLAIN-and-CONSUL_GRPC_ADDR-TLS-is-tls", row: "xds with TLS and the CA of HTTP"},
	{name: "ingress-gateway", row: "ingress gateway at the command's address"},
	{name: "ingress-gateway-nodemeta", row: "ingress gateway with a node name"},
	{name: "ingress-gateway-address-specified", row: "ingress gateway at an address"},
	{name: "ingress-gateway-register-with-service-without-proxy-id", row: "ingress gateway registered by its name"},
	{name: "ingress-gateway-register-with-service-and-proxy-id", row: "ingress gateway registered by its id"},
	{name: "ingress-gateway-no-auto-register", row: "ingress gateway found by its kind"},
	{name: "access-logs-enabled", row: "access logs"},
	{name: "access-logs-enabled-custom", row: "access logs on stdout"},
	{name: "telemetry-collector", row: "collector"},
	{name: "acl-enabled-and-token", row: "sidecar with a token"},
	{name: "acl-enabled-but-no-token", row: "sidecar"},
	{name: "envoy-readiness-probe", row: "ready"},
}

// laterCases are those that Consul 1.22 has beside them: of each case on a host with both stacks, where ::1 is in place
// of 127.0.0.1, and of gateways without an address.
var laterCases = []struct {
	names []string // of the cases that they are variants of
	// suffix follows the case's name, and row is that of what is different.
	suffix, row string
}{
	{[]string{"admin-bind-flag", "defaults"}, "-with-dual-stack", "admin on IPv6"},
	{[]string{"grpc-addr-flag"}, "-with-dual-stack", "xds by IPv6"},
	{[]string{
		"access-log-path", "custom-bootstrap", "defaults-nodemeta", "deprecated-grpc-addr-config", "existing-ca-file",
		"existing-ca-path", "extra_-multiple", "extra_-single", "grpc-addr-env", "grpc-addr-unix", "grpc-addr-unix-with-tls",
		"grpc-tls-addr-config", "prometheus-metrics", "prometheus-metrics-tls-ca-file", "prometheus-metrics-tls-ca-path",
		"stats-config-override", "telemetry-collector", "token-arg", "token-env", "token-file-arg", "token-file-env",
		"xds-addr-config", "zipkin-tracing-config",
	}, "-dualstack", "admin on IPv6"},
	{[]string{
		"ingress-gateway-no-auto-register", "ingress-gateway-register-with-service-and-proxy-id",
		"ingress-gateway-register-with-service-without-proxy-id", "ingress-gateway",
	}, "-without-address", "ingress gateway found by its kind"}, // the port is the registration's
}

// checkCases checks that the row of each case was compared, and needed no difference but the spelling of a list.
func checkCases(t *testing.T, rows map[string][]byte, used map[string][]string) {
	t.Helper()
	same, seen := 0, map[string]bool{}
	for _, c := range consulCases {
		seen[c.name] = true
		if c.row == "" {
			continue
		}
		same++
		if rows[c.row] == nil {
			t.Errorf("%s: no row %q was compared", c.name, c.row)
		}
		for difference, needed := range used {
			if difference != differences[0].name && slices.Contains(needed, c.row) {
				t.Errorf("%s: the row %q needs the difference %q", c.name, c.row, difference)
			}
		}
	}
	if len(seen) != 40 || same < 36 {
		t.Errorf("%d of %d cases are the same, want 36 of 40", same, len(seen))
	}
	for _, l := range laterCases {
		if rows[l.row] == nil {
			t.Errorf("cases %s: no row %q was compared", l.suffix, l.row)
		}
		for _, name := range l.names {
			seen[name+l.suffix] = true
		}
	}
	if len(seen) != 70 { // of Consul 1.22
		t.Errorf("%d cases, want 70", len(seen))
	}
}

// nodeName is that of the Consul agent under test.
const nodeName = "server-0"

// flagRows have flags of the command for which Pannier has keys, and other ways of its input. The listener for
// Prometheus serves with certificates in a directory.
func flagRows(t *testing.T, dir string) []row {
	web := func(config map[string]any) *api.AgentServiceRegistration {
		return sidecar("web-1-sidecar-proxy", config)
	}
	scraped := map[string]any{"envoy_prometheus_bind_addr": "0.0.0.0:9102"}
	flags := func(own map[string]any, all ...string) row { return row{service: web(scraped), own: own, flags: all} }
	named := func(name string, r row) row {
		r.name = name
		return r
	}
	backend := map[string]any{"envoy_prometheus_backend_port": 20100, "envoy_prometheus_scrape_path": "/scrape"}
	backendFlags := []string{"-prometheus-backend-port", "20100", "-prometheus-scrape-path", "/scrape"}
	file, cert, key := consul.Certificates(t, dir)
	const directory = "testdata/cas"
	pair := []string{"-prometheus-cert-file", cert, "-prometheus-key-file", key}
	tls := func(caKey, flag, ca string, more map[string]any) (map[string]any, []string) {
		own := map[string]any{
			caKey: ca, "envoy_prometheus_cert_file": cert, "envoy_prometheus_key_file": key,
		}
		for k, v := range more {
			own[k] = v
		}
		return own, append([]string{flag, ca}, pair...)
	}
	byFile, fileFlags := tls("envoy_prometheus_ca_file", "-prometheus-ca-file", file, backend)
	byDirectory, directoryFlags := tls("envoy_prometheus_ca_path", "-prometheus-ca-path", directory, backend)
	ownTLS, ownFlags := tls("envoy_prometheus_ca_file", "-prometheus-ca-file", file, nil)
	inTemplate := named("prometheus with TLS in a template", flags(byFile, append(fileFlags, backendFlags...)...))
	inTemplate.service = web(map[string]any{
		"envoy_prometheus_bind_addr": "0.0.0.0:9102", "envoy_stats_bind_addr": "0.0.0.0:9103",
		"envoy_bootstrap_json_tpl": wholeTemplate,
	})
	withStats := named("prometheus with TLS and stats", flags(ownTLS, ownFlags...))
	withStats.service = web(map[string]any{
		"envoy_prometheus_bind_addr": "0.0.0.0:9102", "envoy_stats_bind_addr": "0.0.0.0:9103",
	})
	withStats.ready = bootstrap.Bind{Address: "127.0.0.1", Port: 19002}
	rows := []row{
		named("prometheus with a path", flags(map[string]any{"envoy_prometheus_scrape_path": "/scrape"},
			"-prometheus-scrape-path", "/scrape")),
		named("prometheus with a backend", flags(backend, backendFlags...)),
		named("prometheus with TLS", flags(byFile, append(fileFlags, backendFlags...)...)),
		named("prometheus with TLS by a directory", flags(byDirectory, append(directoryFlags, backendFlags...)...)),
		inTemplate, withStats,
		{
			name: "a backend and no prometheus", service: web(nil), own: byFile,
			flags: append(fileFlags, backendFlags...),
		},
		{
			name: "node name", service: web(nil), own: map[string]any{"envoy_node_name": nodeName},
			flags: []string{"-node-name", nodeName},
		},
		{
			name: "ingress gateway with a node name", own: map[string]any{"envoy_node_name": nodeName},
			service: gateway(api.ServiceKindIngressGateway, "edge", "edge", nil), flags: []string{"-node-name", nodeName},
			ready: bootstrap.Bind{Address: "127.0.0.1", Port: 8443},
		},
		{
			name: "admin's log at a path", service: web(nil),
			own:   map[string]any{"envoy_admin_access_log_path": "/var/log/admin.log"},
			flags: []string{"-admin-access-log-path", "/var/log/admin.log"},
		},
		{name: "xds with TLS and a directory of CAs", service: web(nil), consul: func(c *service.Consul) {
			c.GRPCAddress, c.GRPCCAFile = "https://127.0.0.1:8503", directory
		}},
		{
			name: "xds by the environment", service: web(nil),
			consul: func(c *service.Consul) { c.GRPCAddress = "localhost:9999" },
			by: func(cmd *exec.Cmd, _, _ string) {
				at := slices.Index(cmd.Args, "-grpc-addr")
				cmd.Env = append(cmd.Env, "CONSUL_GRPC_ADDR="+cmd.Args[at+1])
				cmd.Args = slices.Delete(cmd.Args, at, at+2)
			},
		},
	}
	for name, by := range map[string]func(cmd *exec.Cmd, secret, file string){
		"token by the environment": nil,
		"token by a flag":          func(cmd *exec.Cmd, secret, _ string) { cmd.Args = append(cmd.Args, "-token", secret) },
		"token by a file":          func(cmd *exec.Cmd, _, file string) { cmd.Args = append(cmd.Args, "-token-file", file) },
		"token by the name of a file": func(cmd *exec.Cmd, _, file string) {
			cmd.Env = append(cmd.Env, "CONSUL_HTTP_TOKEN_FILE="+file)
		},
	} {
		r := row{name: name, service: web(nil), token: func(*testing.T, *consul.Cluster) string {
			return "4c8d4a4e-7d3c-4f5e-9a57-0d1e2f3a4b5c"
		}}
		if by != nil {
			r.by = func(cmd *exec.Cmd, secret, file string) {
				cmd.Env = slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "CONSUL_HTTP_TOKEN=") })
				by(cmd, secret, file)
			}
		}
		rows = append(rows, r)
	}
	ingress := func(name, id, service string, port int, flags ...string) row {
		return row{
			name: name, service: gateway(api.ServiceKindIngressGateway, id, service, nil),
			flags: append([]string{"-gateway", "ingress"}, flags...),
			ready: bootstrap.Bind{Address: "127.0.0.1", Port: port},
		}
	}
	return append(rows,
		ingress("ingress gateway at the command's address", "edge", "edge", 8443, "-service", "edge"),
		ingress("ingress gateway at an address", "edge", "edge", 7777, "-service", "edge", "-address", "127.0.0.1:7777"),
		ingress("ingress gateway registered by its name", "edge", "edge", 7777, "-proxy-id=", "-register", "-service", "edge",
			"-address", "127.0.0.1:7777"),
		ingress("ingress gateway registered by its id", "in-1", "edge", 7777, "-register", "-service", "edge",
			"-address", "127.0.0.1:7777"),
		ingress("ingress gateway found by its kind", "ingress-gateway", "ingress-gateway", 7777, "-proxy-id=", "-address",
			"127.0.0.1:7777"),
	)
}
