package supervisor_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// The running copy can be pinned, and unpinned if no other binary should run.
func TestPinWhatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	now := status(t, s, "fixture")
	st, err := s.Pin(within(t), "fixture", "")
	if err != nil || st.Pinned != now.SHA256 || st.PID != now.PID {
		t.Errorf("pinned: %v, %+v", err, st)
	}
	if _, err := s.Rollback(within(t), "fixture", "", nil); !errors.Is(err, supervisor.ErrNoCopy) {
		t.Errorf("rolled back to nothing: %v", err)
	}
	if st, err = s.Unpin(within(t), "fixture"); err != nil || st.Pinned != "" || st.PID != now.PID {
		t.Errorf("unpinned: %v, %+v", err, st)
	}
}

// A copy that cannot take over is not pinned, because the next host would start it.
func TestPinOfABadCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	now := status(t, s, "fixture")
	w.put("fixture", "exit", "2.0.0")
	bad := sumOf(t, w.cfg.PluginDir+"/fixture")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Refused[bad] != "" })
	if st, err := s.Pin(within(t), "fixture", bad); err == nil || st.Pinned != "" || st.PID != now.PID {
		t.Errorf("pinned: %v, %+v", err, st)
	}
}

// A pinned plugin is not rolled back.
func TestRollbackOfAPinnedPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	w.put("fixture", "good", "1.3.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
	if _, err := s.Pin(within(t), "fixture", ""); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Rollback(within(t), "fixture", "", nil); !errors.Is(err, supervisor.ErrPinned) || st.Version != "1.3.0" {
		t.Errorf("rolled back: %v, %+v", err, st)
	}
}

// A plugin's own rollback window has priority over the default.
func TestRollbackWindowOfAPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.RollbackWindow = time.Nanosecond
	w.configure(supervisor.Plugin{Name: "fixture", RollbackWindow: time.Minute})
	s := w.open()
	mustCall(t, s, "fixture", "")
	w.put("fixture", "good", "1.3.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
	_, _ = call(t, s, "fixture", "exit")
	await(t, s, "fixture", func(st supervisor.Status) bool {
		return st.Version == "1.2.3" &&
			st.State == supervisor.Running
	})
}

// StopWithHost ends plugins that would otherwise keep running.
func TestStopWithHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	s := w.open()
	mustCall(t, s, "fixture", "")
	s.StopWithHost(true)
	w.must(s.Close())
	if pids := w.pids(); len(pids) != 0 {
		t.Errorf("processes %v are left", pids)
	}
}
