package drivers

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// pair is a driver whose node service and controller are two processes that the registry runs.
func pair(id string, controllerArgs ...string) []Spec {
	node, controller := supervised(id), supervised(id, append([]string{"-controller"}, controllerArgs...)...)
	node.Type = TypeNode
	controller.Type, controller.Apart = TypeController, true
	return []Spec{node, controller}
}

func bothHealthy(d Driver) bool { return d.Healthy && d.Controller != nil && d.Controller.Healthy }

func TestControllerApart(t *testing.T) {
	h := open(t, shortDir(t), pair("a")...)
	d := h.wait("a", "healthy in both parts", bothHealthy)
	if d.PID == 0 || d.Controller.PID == 0 || d.PID == d.Controller.PID {
		t.Errorf("processes %d and %d", d.PID, d.Controller.PID)
	}
	if d.Fingerprint.Node == nil || d.Fingerprint.Controller == nil || !d.Fingerprint.Controller.CreateDelete {
		t.Errorf("fingerprint %+v", d.Fingerprint)
	}
	dir := filepath.Join(h.dataDir, "csi", "a")
	if c := d.ForController(); d.Endpoint != "unix://"+dir+"/csi.sock" || c.Endpoint != "unix://"+dir+"/controller/csi.sock" ||
		c.Dir() != dir {
		t.Errorf("endpoints %s and %s", d.Endpoint, c.Endpoint)
	}
	if all := h.List(); len(all) != 1 || all[0].Controller == nil {
		t.Errorf("list: %+v", all)
	}

	// Each has its own end and its own restart.
	h.setUsers(heldBy)
	check.NoError(t, syscall.Kill(d.Controller.PID, syscall.SIGKILL))
	next := h.wait("a", "with another controller", func(n Driver) bool {
		return bothHealthy(n) && n.Controller.PID != d.Controller.PID
	})
	if next.PID != d.PID || next.Restarts != 0 || next.Controller.Restarts != 1 {
		t.Errorf("after the end of the controller: %+v, %+v", next, next.Controller)
	}
	if err := h.Restart(t.Context(), "a", "", false); !errors.Is(err, ErrInUse) ||
		!strings.Contains(err.Error(), "-type controller") {
		t.Errorf("restart in use: %v", err)
	}
	check.NoError(t, h.Restart(t.Context(), "a", TypeController, false))
	restarted, err := h.Get("a")
	if err != nil || !bothHealthy(restarted) || restarted.PID != d.PID || restarted.Controller.PID == next.Controller.PID {
		t.Errorf("after a restart of the controller: %+v, %+v, %v", restarted, restarted.Controller, err)
	}
	check.NoError(t, syscall.Kill(d.PID, syscall.SIGKILL))
	last := h.wait("a", "with another node service", func(n Driver) bool { return bothHealthy(n) && n.PID != d.PID })
	if last.Controller.PID != restarted.Controller.PID {
		t.Errorf("the controller was restarted: %+v", last.Controller)
	}
	h.setUsers()
	check.NoError(t, h.Restart(t.Context(), "a", "", false))
	if both, err := h.Get("a"); err != nil || both.PID == last.PID || both.Controller.PID == last.Controller.PID {
		t.Errorf("after a restart of both: %+v, %v", both, err)
	}
	if err := h.Restart(t.Context(), "a", TypeMonolith, false); !errors.Is(err, ErrNotFound) {
		t.Errorf("restart of what it does not have: %v", err)
	}
}

// A host that comes back finds both. A changed configuration of the controller is applied at once, also while the
// driver is in use: it mounts nothing.
func TestControllerApartAfterARestartOfTheHost(t *testing.T) {
	dataDir := shortDir(t)
	h := open(t, dataDir, pair("a")...)
	d := h.wait("a", "healthy", bothHealthy)
	check.NoError(t, h.Close(false))

	h = newHost(t, dataDir)
	h.setUsers(heldBy)
	h.open(pair("a")...)
	found := h.wait("a", "healthy again", bothHealthy)
	if found.PID != d.PID || found.Controller.PID != d.Controller.PID {
		t.Errorf("processes %d and %d were found, want %d and %d", found.PID, found.Controller.PID, d.PID, d.Controller.PID)
	}
	check.NoError(t, h.Close(false))

	h = newHost(t, dataDir)
	h.setUsers(heldBy)
	h.open(pair("a", "-version", "2.0")...)
	changed := h.wait("a", "with a new controller", func(n Driver) bool {
		return bothHealthy(n) && n.Controller.Fingerprint.Version == "2.0"
	})
	if changed.PID != d.PID || changed.Waiting || changed.Controller.Waiting || alive(d.Controller.PID) {
		t.Errorf("got %+v, %+v", changed, changed.Controller)
	}
	check.NoError(t, h.Close(false))

	// One process again.
	h = newHost(t, dataDir)
	h.setUsers(heldBy)
	h.open(supervised("a"))
	h.wait("a", "without a controller", func(n Driver) bool { return n.Healthy && n.Controller == nil })
	for alive(changed.Controller.PID) {
		select {
		case <-h.Changed():
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the controller runs on")
		}
	}
}

// The two parts must be of one driver. Which of them is wrong is not known, so workloads keep their node service.
func TestControllerOfAnotherDriver(t *testing.T) {
	h := open(t, shortDir(t), pair("a", "-name", "other.example.com")...)
	d := h.wait("a", "with a foreign controller", func(d Driver) bool { return d.Controller != nil && d.foreign() != "" })
	if c := d.ForController(); !d.Healthy || c.Healthy || !strings.Contains(c.Message, "other.example.com") ||
		!strings.Contains(c.Message, "test.example.com") {
		t.Errorf("got %+v", c)
	}
	h.mustHaveHappened("unhealthy")
}

// Calls to the controller go to its socket and wait for its health, others to the node service.
func TestCallsOfAControllerApart(t *testing.T) {
	dataDir := shortDir(t)
	h := open(t, dataDir)
	node, controller := filepath.Join(dataDir, "n.sock"), filepath.Join(dataDir, "c.sock")
	stopNode := serve(t, node, &csiDriver{version: "1"})
	stopController := serve(t, controller, &csiDriver{version: "1", controller: true})
	part := func(kind Type, socket string) Spec {
		return Spec{ID: "a", Type: kind, Endpoint: socket, HealthTimeout: time.Minute}
	}
	for _, spec := range []Spec{part(TypeController, controller), part(TypeNode, node)} { // in either order
		if d, err := h.Register(t.Context(), spec); err != nil || !d.Healthy {
			t.Fatalf("register %s: %+v, %v", spec.Type, d, err)
		}
	}
	if _, err := h.Register(t.Context(), part(TypeMonolith, filepath.Join(dataDir, "m.sock"))); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "controller") {
		t.Errorf("a second controller: %v", err)
	}
	calls := Caller{Drivers: h.Registry, Storage: func(ctx context.Context, _ string,
		fn func(context.Context, storage.Client) error,
	) error {
		return fn(ctx, nil)
	}}
	called := func(call func(context.Context, string, time.Duration,
		func(context.Context, storage.Client, Driver) error) error,
	) (endpoint string, err error) {
		err = call(t.Context(), "a", 0, func(_ context.Context, _ storage.Client, d Driver) error {
			endpoint = d.Ref().Endpoint
			return nil
		})
		return endpoint, err
	}
	if got, err := called(calls.Call); err != nil || got != "unix://"+node {
		t.Errorf("a call to the node service: %s, %v", got, err)
	}
	if got, err := called(calls.CallController); err != nil || got != "unix://"+controller {
		t.Errorf("a call to the controller: %s, %v", got, err)
	}
	check.NoError(t, h.CheckCompatible(t.Context(), h.bridge, every))

	stopController()
	h.wait("a", "without its controller", func(d Driver) bool { return d.Healthy && !d.ForController().Healthy })
	if _, err := called(calls.CallController); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("a call to a stopped controller: %v", err)
	}
	if _, err := called(calls.Call); err != nil {
		t.Errorf("a call to the node service: %v", err)
	}
	h.setUsers(heldBy)
	if err := h.Deregister(t.Context(), "a", "", false); !errors.Is(err, ErrInUse) {
		t.Errorf("deregister in use: %v", err)
	}
	check.NoError(t, h.Deregister(t.Context(), "a", TypeController, false))
	h.wait("a", "without a controller", func(d Driver) bool { return d.Controller == nil })
	stopNode()
}
