package supervisor_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// serve puts a good binary of each version into the plugin directory, one after another.
func (w *world) serve(s *supervisor.Supervisor, versions ...string) {
	w.t.Helper()
	for _, v := range versions {
		w.put("fixture", "good", v)
		await(w.t, s, "fixture", func(st supervisor.Status) bool { return st.Version == v && st.State == supervisor.Running })
	}
}

// keptVersions lists the versions of the copies that are kept.
func keptVersions(st supervisor.Status) (names []string) {
	for _, v := range st.Versions {
		if v.Kept {
			names = append(names, v.Version)
		}
	}
	return names
}

func wantKept(t *testing.T, st supervisor.Status, want ...string) {
	t.Helper()
	if got := keptVersions(st); !slices.Equal(got, want) {
		t.Errorf("the versions %q are kept, want %q", got, want)
	}
}

// The copies that served last are kept, and any of them can be brought back, by this host and the next one.
func TestKeptVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(supervisor.Plugin{Name: "fixture", KeepVersions: 4})
	w.cfg.StopPlugins = false
	s := w.open()
	w.serve(s, "1.3.0", "1.4.0", "1.5.0", "1.6.0")
	st := status(t, s, "fixture")
	wantKept(t, st, "1.3.0", "1.4.0", "1.5.0", "1.6.0")
	for n, v := range st.Versions {
		if serves := n == 3; v.From.IsZero() || v.Until.IsZero() != serves || (v.File != "") != serves {
			t.Errorf("version %d of four is %+v", n, v)
		}
	}
	if _, err := s.Rollback(within(t), "fixture", "1.2.3", nil); !errors.Is(err, supervisor.ErrNoCopy) {
		t.Errorf("rolled back to a version that is not kept: %v", err)
	}
	if _, err := s.Rollback(within(t), "fixture", "1.6.0", nil); !errors.Is(err, supervisor.ErrNoSwap) {
		t.Errorf("rolled back to what serves: %v", err)
	}
	st, err := s.Rollback(within(t), "fixture", "v1.3.0", nil)
	if err != nil || st.Version != "1.3.0" || !st.Swaps[len(st.Swaps)-1].Rollback {
		t.Fatalf("rolled back: %v, %+v", err, st)
	}
	wantKept(t, st, "1.4.0", "1.5.0", "1.6.0", "1.3.0")
	w.must(s.Close())

	w.configure(supervisor.Plugin{Name: "fixture", KeepVersions: 2})
	w.cfg.StopPlugins = true
	s = w.open()
	st = await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
	if st.Version != "1.3.0" {
		t.Errorf("the next host runs %s", st.Version)
	}
	sum := st.Versions[1].SHA256
	if st, err = s.Rollback(within(t), "fixture", sum[:6], nil); err != nil || st.Version != "1.5.0" {
		t.Errorf("rolled back to %s: %v, %+v", sum[:6], err, st)
	}
	wantKept(t, st, "1.3.0", "1.5.0")
	w.settled(s)
	w.serve(s, "1.7.0") // a new file ends it
	dirs, err := filepath.Glob(w.cfg.DataDir + "/plugins/*/fixture")
	if err != nil || len(dirs) > 3 { // and one that finishes its calls
		t.Errorf("copies %q are left: %v", dirs, err)
	}
}

// A pinned plugin says which newer file waits.
func TestAFileWaitsForAPinnedPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	w.serve(s, "1.3.0")
	if st, err := s.Pin(within(t), "fixture", "1.2.3"); err != nil || st.Version != "1.2.3" {
		t.Fatalf("pinned: %v, %+v", err, st)
	}
	waiting := func(version string) {
		t.Helper()
		await(t, s, "fixture", func(st supervisor.Status) bool {
			return slices.ContainsFunc(st.Versions, func(v supervisor.Version) bool {
				return v.Waits && v.Version == version && v.File != ""
			})
		})
	}
	waiting("1.3.0")
	w.put("fixture_v1.4.0", "good", "1.4.0")
	waiting("1.4.0")
	if _, err := s.Pin(within(t), "fixture", "9.9.9"); !errors.Is(err, supervisor.ErrNoCopy) {
		t.Errorf("pinned to nothing: %v", err)
	}
	if st, err := s.Unpin(within(t), "fixture"); err != nil || st.Version != "1.4.0" ||
		slices.ContainsFunc(st.Versions, func(v supervisor.Version) bool { return v.Waits }) {
		t.Errorf("unpinned: %v, %+v", err, st)
	}
	w.put("fixture_v1.0.0", "good", "1.0.0") // older than what serves, so it is not looked into
	await(t, s, "fixture", func(st supervisor.Status) bool {
		return slices.Contains(st.Versions, supervisor.Version{Version: "1.0.0", File: w.path("fixture_v1.0.0")})
	})
	if _, err := s.Pin(within(t), "fixture", "1.0.0"); !errors.Is(err, supervisor.ErrNoCopy) {
		t.Errorf("pinned to a file that is not looked into: %v", err)
	}
}
