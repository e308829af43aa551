package generator

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/envoy"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/test/lib/consul"
)

// Whatever Consul's agent answers, there is a bootstrap, or an error that says about which proxy.
func FuzzAnswers(f *testing.F) {
	const registered = `{"Kind":"connect-proxy","ID":"p","Service":"web-sidecar-proxy","Port":21000,"Datacenter":"dc1",` +
		`"Proxy":{"DestinationServiceName":"web","DestinationServiceID":"web","Config":{"envoy_stats_flush_interval":"10s",` +
		`"envoy_prometheus_bind_addr":"0.0.0.0:9102"},"AccessLogs":{"Enabled":true,"Type":"file","Path":"/x"},"Upstreams":[null]}}`
	const self = `{"xDS":{"Ports":{"Plaintext":8502,"TLS":-1}},"DebugConfig":{"GRPCAddrs":["tcp://0.0.0.0:8502"]}}`
	for _, text := range []string{
		registered + "\n" + self, self + "\n" + registered, "null", "{}", "[]", "404 unknown", "403 ACL not found", "500 x",
		strings.Replace(registered, "connect-proxy", "mesh-gateway", 1) + "\n403 Permission denied",
		strings.Replace(registered, `"10s"`, `{"a":[1e999]}`, 1) + "\n" + self,
		registered + "\n" + `{"xDS":{"Ports":{"TLS":8503}}}` + "\n" + `{"Roots":[null,{"RootCert":"x"}]}`,
	} {
		f.Add([]byte(text))
	}
	answers := consul.NewAnswers(f)
	g := New(hclog.NewNullLogger())
	g.reach = func(context.Context, envoy.Server) error { return nil }
	f.Cleanup(func() { _ = g.Close() })
	f.Fuzz(func(t *testing.T, text []byte) {
		answers.Give(text)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		out, err := g.Generate(ctx, answers.Service, bootstrap.Request{ProxyID: "p", Wait: 20 * time.Millisecond})
		if _, is := status.FromError(err); !is || err != nil && !strings.Contains(err.Error(), `"p"`) {
			t.Errorf("got %v", err)
		}
		if (err == nil) != (len(out.Bootstrap) > 0) {
			t.Errorf("%d bytes, and %v", len(out.Bootstrap), err)
		}
	})
}
