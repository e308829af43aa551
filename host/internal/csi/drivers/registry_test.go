package drivers

import (
	"errors"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

// Drivers that the host runs and that mount volumes are stopped and started again; others, and their records,
// stay.
func TestSuspendAndResume(t *testing.T) {
	node, controller := supervised("node"), supervised("controller")
	node.Type, controller.Type = TypeNode, TypeController
	controller.HealthTimeout = time.Hour // its process has no controller service, and is left alone that long
	h := open(t, shortDir(t), supervised("a"), node, controller)
	mono, kept := h.healthy("a"), h.wait("controller", "started", func(d Driver) bool { return d.PID != 0 })
	h.healthy("node")
	for range 2 {
		check.NoError(t, h.Suspend(t.Context(), "the node is drained"))
	}
	for _, id := range []string{"a", "node"} {
		if d, err := h.Get(id); err != nil || d.Healthy || d.PID != 0 || d.Message != "the node is drained" {
			t.Errorf("%s: %+v, %v", id, d, err)
		}
	}
	if alive(mono.PID) {
		t.Error("its process runs")
	}
	if d, err := h.Get("controller"); err != nil || d.PID != kept.PID || !alive(d.PID) {
		t.Errorf("the controller: %+v, %v", d, err)
	}
	for range 2 {
		check.NoError(t, h.Resume(t.Context()))
	}
	if again := h.healthy("a"); again.PID == mono.PID || !alive(again.PID) {
		t.Errorf("got %+v", again)
	}
	h.healthy("node")
	check.NoError(t, h.Suspend(t.Context(), "once more"))
	if err := h.Close(true); err != nil { // while they are stopped
		t.Error(err)
	}
}

func TestADriverInUseIsNotSuspended(t *testing.T) {
	h := open(t, shortDir(t), supervised("a"), supervised("b"))
	pid := h.healthy("a").PID
	h.healthy("b")
	h.setUsers("b")
	if err := h.Suspend(t.Context(), "drained"); !errors.Is(err, ErrInUse) {
		t.Errorf("it says %v", err)
	}
	if !alive(pid) {
		t.Error("another one was stopped")
	}
	h.setUsers()
}
