package drivers

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func registered(id, socket string) Spec {
	return Spec{ID: id, Endpoint: socket, HealthTimeout: 2 * time.Second}
}

func TestRegisterAndDeregister(t *testing.T) {
	dataDir := shortDir(t)
	socket := filepath.Join(dataDir, "r.sock")
	serve(t, socket, &csiDriver{version: "1"})
	h := open(t, dataDir)
	d, err := h.Register(t.Context(), registered("r", socket))
	if err != nil || !d.Healthy || d.Source != SourceRegistered || d.Type != TypeMonolith || d.PID != 0 {
		t.Fatalf("got %+v, %v", d, err)
	}
	if d, err := h.Register(t.Context(), registered("r", "unix://"+socket)); err != nil || !d.Healthy {
		t.Fatalf("again: %+v, %v", d, err)
	}
	h.mustHaveHappened("registered", "healthy")
	h.mustNotHaveHappened("updated")
	h.Close(false)

	next := open(t, dataDir) // it is remembered
	next.healthy("r")
	next.setUsers(`workload "db"`)
	if err := next.Deregister(t.Context(), "r", "", false); !errors.Is(err, ErrInUse) ||
		!strings.Contains(err.Error(), `workload "db"`) {
		t.Errorf("in use: got %v", err)
	}
	if err := next.Deregister(t.Context(), "r", "", true); err != nil {
		t.Errorf("forced: %v", err)
	}
	if err := next.Deregister(t.Context(), "r", "", true); !errors.Is(err, ErrNotFound) {
		t.Errorf("twice: got %v", err)
	}
	if got := next.happened("deregistered"); len(got) != 1 ||
		!strings.Contains(got[0], `by force, although in use by workload "db"`) {
		t.Errorf("got %v", got)
	}
	next.Close(false)
	if got := open(t, dataDir).List(); len(got) != 0 {
		t.Errorf("it is back: %+v", got)
	}
}

func TestRegisterUpdates(t *testing.T) {
	h := open(t, shortDir(t))
	one, two := filepath.Join(h.dataDir, "1.sock"), filepath.Join(h.dataDir, "2.sock")
	serve(t, one, &csiDriver{version: "1"})
	serve(t, two, &csiDriver{version: "2"})
	if d, err := h.Register(t.Context(), registered("r", one)); err != nil || d.Fingerprint.Version != "1" {
		t.Fatalf("got %+v, %v", d, err)
	}
	h.setUsers(`workload "db"`)
	if d, err := h.Register(t.Context(), registered("r", two)); err != nil || d.Fingerprint.Version != "2" {
		t.Fatalf("got %+v, %v", d, err)
	}
	h.mustHaveHappened("registered", "healthy", "updated", "healthy")
	moved := registered("r", two)
	moved.MountDir = "/csi"
	if _, err := h.Register(t.Context(), moved); !errors.Is(err, ErrInUse) {
		t.Errorf("other paths while in use: got %v", err)
	}
	h.setUsers()
	if d, err := h.Register(t.Context(), moved); err != nil ||
		d.Translate(d.Dir()+"/staging/x") != "/local/csi/staging/x" {
		t.Errorf("other paths: got %+v, %v", d, err)
	}
}

func TestRegisterRefuses(t *testing.T) {
	h := open(t, shortDir(t), Spec{ID: "declared", Endpoint: "/run/nowhere/declared.sock"})
	for _, tt := range []struct {
		name, want string
		is         error
		spec       Spec
	}{
		{"a declared one", "change its csi_driver block", ErrDeclared, registered("declared", "/run/x.sock")},
		{"another's socket", `that of driver "declared"`, ErrInvalid, registered("r", "/run/nowhere/declared.sock")},
		{"a bad id", "has the character '/'", ErrInvalid, registered("../r", "/run/x.sock")},
		{"a command", "has no command", ErrInvalid, supervised("r")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := h.Register(t.Context(), tt.spec); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %v with %q", err, tt.is, tt.want)
			}
		})
	}
	if err := h.Deregister(t.Context(), "declared", "", true); !errors.Is(err, ErrDeclared) {
		t.Errorf("deregister a declared one: got %v", err)
	}
	_, err := h.Get("nobody")
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "known are declared") ||
		!strings.Contains(err.Error(), "pannier driver register nobody") {
		t.Errorf("get: %v", err)
	}
	h.Close(false)
	if _, err := h.Register(t.Context(), registered("r", "/run/x.sock")); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: got %v", err)
	}
}

func TestDeclaredMistakesAreReportedTogether(t *testing.T) {
	h := newHost(t, shortDir(t))
	err := h.Open(t.Context(), []Spec{
		{ID: "a"},
		{ID: "a"},
		{ID: "b", Endpoint: "/run/s"},
		{ID: "c", Endpoint: "unix:///run/s"},
		{ID: "d", Type: "x"},
	})
	if !errors.Is(err, ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{`"a" is declared twice`, `also that of driver "b"`, `type "x"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if len(h.List()) != 0 {
		t.Error("some were taken in")
	}
}

// A driver that is registered before it runs is waited for, and its status explains why.
func TestRegisterBeforeTheDriverRuns(t *testing.T) {
	h := open(t, shortDir(t))
	socket := filepath.Join(h.dataDir, "r.sock")
	d, err := h.Register(t.Context(), registered("r", socket))
	if err != nil || d.Healthy || !strings.Contains(d.Message, "cannot be reached") {
		t.Fatalf("got %+v, %v", d, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other := registered("r2", filepath.Join(h.dataDir, "r2.sock"))
	if _, err := h.Register(ctx, other); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	serve(t, socket, &csiDriver{})
	h.healthy("r")
	h.mustNotHaveHappened("deregistered")
}

func TestStoppedDriverIsDeregistered(t *testing.T) {
	h := open(t, shortDir(t))
	socket := filepath.Join(h.dataDir, "r.sock")
	stop := serve(t, socket, &csiDriver{})
	if _, err := h.Register(t.Context(), registered("r", socket)); err != nil {
		t.Fatal(err)
	}
	h.setUsers(`workload "db"`)
	stop()
	d := h.wait("r", "kept", func(d Driver) bool { return strings.Contains(d.Message, "in use by") })
	if d.Healthy || !strings.Contains(d.Message, "nobody has listened on "+socket) {
		t.Errorf("got %+v", d)
	}
	if d.Fingerprint.Node == nil || d.Fingerprint.Provider == "" {
		t.Errorf("what was known of the driver is lost: %+v", d.Fingerprint)
	}

	stop = serve(t, socket, &csiDriver{}) // it comes back, and all is well
	h.wait("r", "well again", func(d Driver) bool { return d.Healthy && d.Message == "" })

	stop()
	h.setUsers()
	begin := time.Now()
	h.waitGone("r")
	if took := time.Since(begin); took < time.Second {
		t.Errorf("deregistered after %s, before the health timeout", took)
	}
	h.mustHaveHappened("healthy", "unhealthy", "kept", "healthy", "unhealthy", "deregistered")
	h.Close(false)
	if got := open(t, h.dataDir).List(); len(got) != 0 {
		t.Errorf("it is back: %+v", got)
	}
}

// A driver that stopped while no host was running is recognised as gone, too. A driver that only hangs is
// not.
func TestDriverThatStoppedWhileTheHostWasAway(t *testing.T) {
	h := open(t, shortDir(t))
	socket := filepath.Join(h.dataDir, "r.sock")
	stop := serve(t, socket, &csiDriver{})
	if _, err := h.Register(t.Context(), registered("r", socket)); err != nil {
		t.Fatal(err)
	}
	h.Close(false)
	stop()
	h = open(t, h.dataDir)
	h.waitGone("r")
}

func TestUnreadyDriverIsUnhealthyNotGone(t *testing.T) {
	h := open(t, shortDir(t))
	socket := filepath.Join(h.dataDir, "r.sock")
	serve(t, socket, &csiDriver{notReady: true})
	spec := registered("r", socket)
	d, err := h.Register(t.Context(), spec)
	if err != nil || d.Healthy || d.Message != "the driver is not ready" {
		t.Fatalf("got %+v, %v", d, err)
	}
	if got := h.instance("r"); got == nil || gone(socket) {
		t.Error("it counts as gone")
	}
}

// Concurrent Register and Deregister calls must not deadlock.
func TestConcurrentChanges(t *testing.T) {
	h := open(t, shortDir(t))
	done := make(chan struct{})
	for n := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			socket := filepath.Join(h.dataDir, "none.sock")
			for range 20 {
				spec := registered("r", socket)
				spec.HealthTimeout = time.Duration(n+1) * 8 * time.Millisecond
				h.Register(context.Background(), spec)
				h.Deregister(context.Background(), "r", "", false)
			}
		}()
	}
	for range 4 {
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("they lock each other out")
		}
	}
}
