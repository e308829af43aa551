package volumesteps

import (
	"testing"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

// What was recorded before a call holds only while it covers the time of the call, and its process.
func TestNoteHolds(t *testing.T) {
	made := boottime.Now()
	of := func(since boottime.Instant, pid int, started uint64) *unanswered {
		return &unanswered{Call: "stage", Since: since, PID: pid, Started: started}
	}
	now := of(made.Add(ahead), 7, 100) // a note of this moment
	for name, c := range map[string]struct {
		noted *unanswered
		want  bool
	}{
		"nothing":                  {nil, false},
		"at the same time":         {now, true},
		"just before":              {of(made.Add(1), 7, 100), true},
		"too long before":          {of(made.Add(-1), 7, 100), false},
		"for another process":      {of(made.Add(ahead), 8, 100), false},
		"for an earlier process 7": {of(made.Add(ahead), 7, 99), false},
	} {
		if got := c.noted.holds(now); got != c.want {
			t.Errorf("noted %s: %v", name, got)
		}
	}
	if n := note("stage", drivers.Driver{}); n.Since < made.Add(ahead) || n.PID != 0 {
		t.Errorf("a note of now is %+v", n)
	}
}
