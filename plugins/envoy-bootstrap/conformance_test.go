package main

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance runs the conformance kit on envoy-bootstrap, with a real Consul and a registered proxy.
func TestConformance(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	const id = "web-1-sidecar-proxy"
	if err := c.Client(c.Management).Agent().ServiceRegister(&api.AgentServiceRegistration{
		Kind: api.ServiceKindConnectProxy, ID: id, Name: "web-sidecar-proxy", Port: 20000,
		Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "web"},
	}); err != nil {
		t.Fatal(err)
	}
	c.Policy(t, "mesh", `
service_prefix "" { policy = "write" }
node_prefix    "" { policy = "read" }
agent_prefix   "" { policy = "read" }
`)
	conformance.Test(t, conformance.Config{
		Binary:  testbin.Build(t, "plugins/envoy-bootstrap"),
		Consul:  c.Service(service.DefaultConsul, c.TokenFile(t, c.Token(t, "mesh"))),
		ProxyID: id,
	})
}
