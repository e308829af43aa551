package generator

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/envoy"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/consul"
)

func TestMain(m *testing.M) {
	envoy.RenderChild()
	goleak.VerifyTestMain(m)
}

// generate generates a bootstrap with a new Generator, and checks that its error and its log contain no
// token.
func generate(t *testing.T, c service.Consul, req bootstrap.Request, secrets ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return generateWithin(ctx, t, c, req, secrets...)
}

func generateWithin(ctx context.Context, t *testing.T, c service.Consul, req bootstrap.Request,
	secrets ...string,
) ([]byte, error) {
	t.Helper()
	var log bytes.Buffer
	g := New(hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &log}))
	g.reach = func(context.Context, envoy.Server) error { return nil } // most addresses are made up
	out, err := g.Generate(ctx, c, req)
	if cerr := g.Close(); cerr != nil {
		t.Error(cerr)
	}
	for _, secret := range secrets {
		if secret != "" && (strings.Contains(log.String(), secret) || err != nil && strings.Contains(err.Error(), secret)) {
			t.Errorf("a token is in the error %v or in the log:\n%s", err, &log)
		}
	}
	return out.Bootstrap, err
}

// register adds s to the catalog of c's first agent until the test's end.
func register(t *testing.T, c *consul.Cluster, s *api.AgentServiceRegistration) {
	t.Helper()
	agent := c.Client(c.Management).Agent()
	if err := agent.ServiceRegister(s); err != nil {
		t.Fatalf("register %q: %v", s.ID, err)
	}
	t.Cleanup(func() {
		if err := agent.ServiceDeregister(s.ID); err != nil {
			t.Errorf("deregister %q: %v", s.ID, err)
		}
	})
}

// sidecar returns a registration of web's sidecar with this proxy configuration.
func sidecar(id string, config map[string]any) *api.AgentServiceRegistration {
	return &api.AgentServiceRegistration{
		Kind: api.ServiceKindConnectProxy, ID: id, Name: "web-sidecar-proxy", Port: 20000,
		Proxy: &api.AgentServiceConnectProxyConfig{
			DestinationServiceName: "web", DestinationServiceID: "web-1", LocalServicePort: 8080, Config: config,
		},
	}
}

// gateway returns a registration of a gateway.
func gateway(kind api.ServiceKind, id, name string, config map[string]any) *api.AgentServiceRegistration {
	return &api.AgentServiceRegistration{
		Kind: kind, ID: id, Name: name, Port: 8443, Proxy: &api.AgentServiceConnectProxyConfig{Config: config},
	}
}

// asked returns a request for tests in which the other fields do not matter.
func asked(proxyID, tokenFile string) bootstrap.Request {
	return bootstrap.Request{
		ProxyID: proxyID, TokenFile: tokenFile, Admin: bootstrap.Bind{
			Address: "127.0.0.2",
			Port:    19001,
		}, Wait: 30 * time.Second,
	}
}
