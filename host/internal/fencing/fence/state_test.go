package fence

import (
	"slices"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
)

// TestReleasedProcess: a process that has ended is forgotten, and a later one with its PID stays guarded. The end of
// the earlier process may be noticed after the later one was named.
func TestReleasedProcess(t *testing.T) {
	db, web := claim.WorkloadRef{Namespace: "default", ID: "db"}, claim.WorkloadRef{Namespace: "default", ID: "web"}
	earlier, later := Process{PID: 7, StartTime: 100, Workload: db}, Process{PID: 7, StartTime: 200, Workload: web}
	other := Process{PID: 8, StartTime: 100, Workload: db}
	for name, row := range map[string]struct {
		change func(c Change)
		want   []Process
	}{
		"it has ended": {
			change: func(c Change) { c.ProtectProcess(earlier); c.ReleaseProcess(earlier) },
		},
		"its PID is another's": {
			change: func(c Change) { c.ProtectProcess(earlier); c.ProtectProcess(later); c.ReleaseProcess(earlier) },
			want:   []Process{later},
		},
		"another process": {
			change: func(c Change) { c.ProtectProcess(earlier); c.ProtectProcess(other); c.ReleaseProcess(earlier) },
			want:   []Process{other},
		},
		"a process that was never named": {
			change: func(c Change) { c.ProtectProcess(other); c.ReleaseProcess(earlier) },
			want:   []Process{other},
		},
	} {
		if got := (State{}).With(row.change).Processes; !slices.Equal(got, row.want) {
			t.Errorf("%s: the fence guards %+v, want %+v", name, got, row.want)
		}
	}
}

// TestReleasedMount: the release of one mount leaves those below it guarded.
func TestReleasedMount(t *testing.T) {
	a, b := Mount{Path: "/a"}, Mount{Path: "/a/b", Staging: true}
	got := State{}.With(func(c Change) { c.Protect(a, b); c.Release(a) }).Mounts
	if !slices.Equal(got, []Mount{b}) {
		t.Errorf("the fence guards %+v, want %+v", got, b)
	}
}
