package main

import (
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance runs the conformance kit on nomad-api.
func TestConformance(t *testing.T) {
	conformance.Test(t, conformance.Config{
		Binary: testbin.Build(t, "plugins/nomad-api"),
		Config: []byte(`{"region": "global", "hosts": ["nomad.example.com"]}`),
		Listen: []string{"nomad"},
	})
}
