package main

import (
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance proves an issuer that is no Consul, verifies its JWTs, and keeps its tokens in the host's state.
func TestConformance(t *testing.T) {
	conformance.Test(t, conformance.Config{
		Binary: testbin.BuildDir(t, "."), OwnBackend: true, Config: []byte(`{"jwks":"` + conformance.JWKSURL + `"}`),
	})
}
