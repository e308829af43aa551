package drivers

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// external is a declared driver that runs in the test's process.
func external(t *testing.T) (h *host, stop func()) {
	dataDir := shortDir(t)
	socket := filepath.Join(dataDir, "e.sock")
	stop = serve(t, socket, &csiDriver{version: "1"})
	h = newHost(t, dataDir)
	return h, stop
}

func (h *host) declareExternal() {
	h.open(Spec{ID: "e", Endpoint: filepath.Join(h.dataDir, "e.sock"), HealthTimeout: time.Second})
}

func TestHealthIsFollowed(t *testing.T) {
	h, stop := external(t)
	h.declareExternal()
	before := h.healthy("e")
	stop()
	d := h.wait("e", "unhealthy", func(d Driver) bool { return !d.Healthy })
	if d.Message != "the driver cannot be reached" || !d.ChangedAt.After(before.ChangedAt) {
		t.Errorf("got %+v", d)
	}
	serve(t, filepath.Join(h.dataDir, "e.sock"), &csiDriver{version: "2"})
	if d := h.healthy("e"); d.Fingerprint.Version != "2" || d.Message != "" {
		t.Errorf("got %+v", d)
	}
	h.mustHaveHappened("healthy", "unhealthy", "healthy")
}

// The replacement of a plugin does not change a driver's health.
func TestPluginsEndIsNotTheDrivers(t *testing.T) {
	h, _ := external(t)
	h.timing.unknownAfter = time.Minute
	h.declareExternal()
	h.healthy("e")
	leases := h.leases.Load()
	h.crashes <- struct{}{}
	check.Eventually(t, "a new fingerprint stream", func() bool { return h.leases.Load() != leases && h.held.Load() > 0 })
	h.mustNotHaveHappened("unhealthy")
	if d, err := h.Get("e"); err != nil || !d.Healthy {
		t.Errorf("got %+v, %v", d, err)
	}
}

func TestLongAbsenceOfThePluginIsUnhealthy(t *testing.T) {
	h, _ := external(t)
	h.declareExternal()
	h.healthy("e")
	h.away.Store(true)
	h.crashes <- struct{}{}
	d := h.wait("e", "unhealthy", func(d Driver) bool { return !d.Healthy })
	if !strings.Contains(d.Message, "cannot be checked") || !strings.Contains(d.Message, errAway.Error()) {
		t.Errorf("got %q", d.Message)
	}
	// unknownAfter is 300 ms, the backoff goes from 5 to 50 ms.
	if n := h.leases.Load(); n > 40 {
		t.Errorf("%d leases were asked for: it spins", n)
	}
	h.away.Store(false)
	h.healthy("e")
}

func TestTypeLimitsTheServices(t *testing.T) {
	node, controller := &storage.NodeCapabilities{NodeID: "n"}, &storage.ControllerCapabilities{Expand: true}
	for _, tt := range []struct {
		of             Type
		fp             storage.Fingerprint
		node, ctrl, ok bool
		message        string
	}{
		{TypeMonolith, storage.Fingerprint{Healthy: true, Node: node, Controller: controller}, true, true, true, ""},
		{TypeMonolith, storage.Fingerprint{Healthy: true, Node: node}, true, false, true, ""},
		{TypeMonolith, storage.Fingerprint{Healthy: true, Controller: controller}, false, true, false, "no node service"},
		{TypeNode, storage.Fingerprint{Healthy: true, Node: node, Controller: controller}, true, false, true, ""},
		{TypeNode, storage.Fingerprint{Healthy: true}, false, false, false, "no node service"},
		{TypeController, storage.Fingerprint{Healthy: true, Node: node, Controller: controller}, false, true, true, ""},
		{TypeController, storage.Fingerprint{Healthy: true, Node: node}, false, false, false, "no controller service"},
		{TypeNode, storage.Fingerprint{Message: "away"}, false, false, false, "away"},
	} {
		d := Driver{Spec: Spec{Type: tt.of}}
		d.conclude(tt.fp)
		if d.Healthy != tt.ok || !strings.Contains(d.Message, tt.message) ||
			(d.Fingerprint.Node != nil) != tt.node || (d.Fingerprint.Controller != nil) != tt.ctrl {
			t.Errorf("%s with %+v: got %+v", tt.of, tt.fp, d)
		}
	}
}
