package main

import (
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance runs the conformance kit on web.
func TestConformance(t *testing.T) {
	conformance.Test(t, conformance.Config{
		Binary: testbin.Build(t, "plugins/web"),
		Config: []byte(`{"actions": true, "hosts": ["pannier.example.org"], "session": "1h"}`),
		Listen: []string{"http"},
	})
}
