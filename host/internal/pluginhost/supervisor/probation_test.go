package supervisor

import (
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
)

// TestProbation: a failure of a binary goes back to the one before it until the window has passed and the binary has
// answered some calls. One that is hardly called shows nothing within the window, so it has ten.
func TestProbation(t *testing.T) {
	const window = time.Hour
	for name, row := range map[string]struct {
		since          time.Duration // since it took over; 0: it never did
		calls          int
		window         time.Duration // of the plugin; 0: the host's
		pinned, before string        // the pin, and the one before this binary took over
		want           bool
	}{
		"it has just taken over":                      {since: time.Minute, want: true},
		"within the window, however often it is used": {since: time.Minute, calls: 10 * provenBy, want: true},
		"after the window, hardly called":             {since: 2 * window, calls: provenBy - 1, want: true},
		"after the window, called":                    {since: 2 * window, calls: provenBy},
		"long after the window, never called":         {since: 11 * window},
		"the plugin's window is shorter":              {since: window / 2, calls: provenBy, window: window / 4},
		"the plugin has no window":                    {since: time.Minute, window: -1},
		"it did not take over from another":           {},
		"an operator has pinned it":                   {since: time.Minute, pinned: "own"},
		"it took over from a pin":                     {since: time.Minute, pinned: "own", before: "other", want: true},
		"another one is pinned":                       {since: time.Minute, pinned: "other", want: true},
	} {
		i := &instance{sup: &Supervisor{cfg: Config{RollbackWindow: window}}, spec: Plugin{RollbackWindow: row.window}}
		i.rec.Pinned = row.pinned
		gen := &generation{i: i, outcomes: newOutcomes()}
		for range row.calls {
			gen.outcomes.add(gen.outcomes.begin("a method"), nil)
		}
		p := &managed.Process{Run: &managed.Run{SHA256: "own", PinnedBefore: row.before}, Conn: gen}
		if row.since > 0 {
			p.Run.TookOver = time.Now().Add(-row.since)
		}
		if got := i.onProbation(p, "own", 1); got != row.want {
			t.Errorf("%s: it is on probation: %t", name, got)
		}
	}
	if (&instance{}).onProbation(nil, "own", 1) {
		t.Error("a binary that could not be started is on probation")
	}
}
