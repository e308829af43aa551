package drivers

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

const heldBy = `volume "v" of workload "db"`

// changedInUse opens a driver in use whose configuration has changed since its process was started.
func changedInUse(t *testing.T) (h *host, pid int) {
	t.Helper()
	dataDir := shortDir(t)
	before := open(t, dataDir, supervised("a"))
	pid = before.healthy("a").PID
	check.NoError(t, before.Close(false))
	h = newHost(t, dataDir)
	h.setUsers(heldBy)
	h.open(supervised("a", "-version", "2.0"))
	d := h.healthy("a")
	if d.PID != pid || !alive(pid) || d.Fingerprint.Version != "1.0" {
		t.Fatalf("got %+v, want process %d", d, pid)
	}
	if want := "pannier driver restart -force a"; !d.Waiting || !strings.Contains(d.Message, want) ||
		!strings.Contains(d.Message, "(command)") {
		t.Errorf("waiting %v: %q, want %q", d.Waiting, d.Message, want)
	}
	h.mustHaveHappened("configuration-waits", "found")
	return h, pid
}

// A changed configuration does not restart a driver in use, and is applied when it is not in use any more.
func TestChangedConfigurationWaits(t *testing.T) {
	h, pid := changedInUse(t)
	check.NoError(t, h.Close(false))
	again := newHost(t, h.dataDir) // it waits across restarts of the host
	again.setUsers(heldBy)
	again.open(supervised("a", "-version", "3.0"))
	if d := again.healthy("a"); d.PID != pid || !d.Waiting {
		t.Errorf("got %+v, want process %d", d, pid)
	}
	again.mustNotHaveHappened("stopped")
	again.setUsers()
	d := again.wait("a", "restarted", func(d Driver) bool { return d.Healthy && d.PID != pid })
	if d.Fingerprint.Version != "3.0" || d.Waiting || d.Message != "" || d.Restarts != 1 || alive(pid) {
		t.Errorf("got %+v; the old process is alive: %v", d, alive(pid))
	}
	again.mustHaveHappened("stopped", "started", "healthy")
}

// A process that ends by itself is followed by one with the configuration that waits.
func TestEndOfTheProcessAppliesWhatWaits(t *testing.T) {
	h, pid := changedInUse(t)
	check.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	d := h.wait("a", "another process", func(d Driver) bool { return d.Healthy && d.PID != pid })
	if d.Fingerprint.Version != "2.0" || d.Waiting {
		t.Errorf("got %+v", d)
	}
}

// The configuration is the earlier one again: nothing waits.
func TestChangeThatIsTakenBack(t *testing.T) {
	h, pid := changedInUse(t)
	check.NoError(t, h.Close(false))
	again := newHost(t, h.dataDir)
	again.setUsers(heldBy)
	again.open(supervised("a"))
	if d := again.healthy("a"); d.PID != pid || d.Waiting || d.Message != "" {
		t.Errorf("got %+v", d)
	}
}

func TestRestart(t *testing.T) {
	h, pid := changedInUse(t)
	ctx := t.Context()
	if err := h.Restart(ctx, "a", "", false); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), heldBy) || !alive(pid) {
		t.Errorf("while in use: %v", err)
	}
	check.NoError(t, h.Restart(ctx, "a", "", true))
	d, err := h.Get("a")
	if err != nil || !d.Healthy || d.PID == pid || alive(pid) || d.Fingerprint.Version != "2.0" || d.Waiting {
		t.Errorf("by force: %+v, %v", d, err)
	}
	h.mustHaveHappened("stopped", "restarted", "started", "healthy")
	h.setUsers()
	check.NoError(t, h.Restart(ctx, "a", "", false))
	second, err := h.Get("a")
	if err != nil || !second.Healthy || second.PID == d.PID || second.Restarts != 2 {
		t.Errorf("unused: %+v, %v", second, err)
	}
	if err := h.Restart(ctx, "b", "", false); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	check.NoError(t, h.Suspend(ctx, "the node is drained"))
	if err := h.Restart(ctx, "a", "", true); !errors.Is(err, ErrNotRun) || !strings.Contains(err.Error(), "drained") {
		t.Errorf("a suspended one: %v", err)
	}
}

func TestRestartOfWhatTheHostDoesNotRun(t *testing.T) {
	dataDir := shortDir(t)
	socket := dataDir + "/s"
	serve(t, socket, &csiDriver{version: "1"})
	h := open(t, dataDir, Spec{ID: "a", Endpoint: socket})
	if err := h.Restart(t.Context(), "a", "", true); !errors.Is(err, ErrNotRun) {
		t.Errorf("got %v", err)
	}
}

// What a driver's process leaves behind while the driver is in use stays, is known after a restart of the host, and
// is ended when the driver is not in use any more.
func TestWhatADriverLeaves(t *testing.T) {
	for name, end := range map[string]func(h *host, pid int){
		"it ends by itself": func(_ *host, pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) },
		"while the host is away": func(h *host, pid int) {
			check.NoError(h.t, h.Close(false))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir := shortDir(t)
			spec := supervised("a")
			spec.Command = append([]string{"/bin/sh", "-c", `sleep 1000 & exec "$@"`, "-"}, spec.Command...)
			h := newHost(t, dataDir)
			h.setUsers(heldBy)
			h.open(spec)
			pid := h.healthy("a").PID
			end(h, pid)
			if name != "it ends by itself" {
				h = newHost(t, dataDir)
				h.setUsers(heldBy)
				h.open(spec)
			}
			d := h.wait("a", "another process", func(d Driver) bool { return d.Healthy && d.PID != pid })
			if len(d.Left) != 1 || !alive(d.Left[0]) {
				t.Fatalf("left are %v", d.Left)
			}
			check.NoError(t, h.Close(false))

			again := newHost(t, dataDir)
			again.timing.tendEvery, again.timing.leftGrace = 10*time.Millisecond, 50*time.Millisecond
			again.setUsers(heldBy)
			again.open(spec)
			again.wait("a", "with what is left", func(n Driver) bool { return n.Healthy && n.PID == d.PID && len(n.Left) == 1 })
			again.setUsers()
			again.wait("a", "without it", func(n Driver) bool { return len(n.Left) == 0 })
			if alive(d.Left[0]) {
				t.Error("what was left runs on")
			}
			if rec, err := loadRecord(recordPath(dataDir, "a"), "a"); err != nil || len(rec.Left) > 0 {
				t.Errorf("recorded %+v, %v", rec, err)
			}
		})
	}
}
