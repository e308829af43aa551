package xds

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// usable is a bootstrap with everything that a stream needs.
const usable = `{
  "node": {"id": "web-sidecar-proxy"},
  "static_resources": {"clusters": [{
    "name": "local_agent", "type": "STATIC",
    "load_assignment": {"cluster_name": "local_agent", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}}]}]}
  }]},
  "dynamic_resources": {
    "lds_config": {"ads": {}, "resource_api_version": "V3"}, "cds_config": {"ads": {}, "resource_api_version": "V3"},
    "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [
      {"initial_metadata": [{"key": "x-consul-token", "value": "secret"}], "envoy_grpc": {"cluster_name": "local_agent"}}
    ]}
  }
}`

// TestOpen checks that bootstraps are refused before any connection is made if Envoy would refuse them, or if
// they would expose the token.
func TestOpen(t *testing.T) {
	tlsSocket := func(validation string) string {
		return `"transport_socket": {"name": "tls", "typed_config": {
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			"common_tls_context": {` + validation + `}}}, "name": "local_agent"`
	}
	for name, tc := range map[string]struct{ old, replacement, want string }{
		"usable":         {"", "", ""},
		"unknown field":  {`"node"`, `"nodes"`, "unknown field"},
		"one for a list": {`"clusters": [{`, `"clusters": {"a": [{`, "parse a bootstrap"},
		"against a rule": {`"name": "local_agent"`, `"name": ""`, "validate a bootstrap"},
		"state of world": {"DELTA_GRPC", "GRPC", "Consul has nothing but DELTA_GRPC"},
		"API of yore":    {`"transport_api_version": "V3"`, `"transport_api_version": "V2"`, "not V3"},
		"no ADS for CDS": {`"cds_config": {"ads": {}, `, `"cds_config": {"self": {}, `, "over ADS"},
		"other cluster":  {`{"cluster_name": "local_agent"}}`, `{"cluster_name": "gone"}}`, `no static cluster "gone"`},
		"a name for IP":  {`"127.0.0.1"`, `"localhost"`, "no IP address"},
		"by DNS":         {`"STATIC"`, `"STRICT_DNS"`, "not STATIC"},
		"empty locality": {`"endpoints": [{"lb_endpoints"`, `"endpoints": [{}, {"lb_endpoints"`, ""},
		"no endpoint": {
			`{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}}`, ``,
			"has 0 endpoints",
		},
		"TLS, no CA": {`"name": "local_agent"`, tlsSocket(``), "trusted CA: is not set"},
		"TLS, empty CA": {
			`"name": "local_agent"`, tlsSocket(`"validation_context": {"trusted_ca": {"inline_string": ""}}`),
			"trust any server",
		},
		"TLS, no CA file": {
			`"name": "local_agent"`,
			tlsSocket(`"validation_context": {"trusted_ca": {"filename": "/does/not/exist"}}`), "no such file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Parse([]byte(strings.Replace(usable, tc.old, tc.replacement, 1)))
			if err == nil {
				if got := Token(b); got != "secret" {
					t.Errorf("got the token %q", got)
				}
				var s *Stream
				if s, err = Open(canceled(), b); err == nil {
					err = s.Close()
				}
			}
			switch {
			case tc.want == "" && err != nil && !strings.Contains(err.Error(), "context canceled"):
				t.Errorf("got %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

// canceled returns a context with which Open ends when it makes the call.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
