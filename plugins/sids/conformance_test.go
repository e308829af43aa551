package main

import (
	"fmt"
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance runs the conformance kit on sids, with a real Consul.
func TestConformance(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	c.Policy(t, "pannier-sids", `acl = "write"`)
	own := c.Token(t, "pannier-sids")
	before := len(c.Tokens(t))
	conformance.Test(t, conformance.Config{
		Binary:  testbin.Build(t, "plugins/sids"),
		Config:  fmt.Appendf(nil, `{"token_file": %q}`, c.TokenFile(t, own)),
		Secrets: []string{own},
		Consul:  c.Service(service.DefaultConsul, ""),
	})
	if left := len(c.Tokens(t)) - before; left != 0 {
		t.Errorf("%d tokens are left", left)
	}
}
