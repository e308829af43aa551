package plugins

import (
	"testing"

	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
)

func TestWhoNeedsAPlugin(t *testing.T) {
	w := workload.Workload{Devices: []devices.Given{{Ref: devices.Ref{Plugin: "gpus", ID: "a"}}}}
	if !needsPlugin(w, "gpus", nil) || needsPlugin(w, "other", nil) {
		t.Error("a workload with a device")
	}
	w = workload.Workload{Services: []servicesteps.Status{{Consul: "east"}}}
	if !needsPlugin(w, "sids", map[string]bool{"east": true}) || needsPlugin(w, "sids", map[string]bool{"west": true}) {
		t.Error("a workload with a service")
	}
}
