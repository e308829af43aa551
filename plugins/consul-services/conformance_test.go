package main

import (
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance runs the conformance kit on consul-services, with a real Consul.
func TestConformance(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	c.Policy(t, "node", `
service_prefix "" { policy = "write" }
node_prefix    "" { policy = "read" }
agent_prefix   "" { policy = "read" }
`)
	conformance.Test(t, conformance.Config{
		Binary: testbin.Build(t, "plugins/consul-services"),
		Consul: c.Service(service.DefaultConsul, c.TokenFile(t, c.Token(t, "node"))),
	})
	if left := c.Services(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}
