package main

import (
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance runs the conformance kit on docker-volume.
func TestConformance(t *testing.T) {
	conformance.Test(t, conformance.Config{
		Binary: testbin.Build(t, "plugins/docker-volume"),
		Config: []byte(`{"driver": "local", "namespace": "shop", "timeout": "20s"}`),
		Listen: []string{"docker"},
	})
}
