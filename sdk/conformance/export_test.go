package conformance

import (
	"context"
	"slices"
	"time"
)

// Patience sets how long a plugin may take to end. For plugins that never end it can be shorter than the default,
// which allows for a busy machine.
func Patience(d time.Duration) { stopTime, afterCancel = d, d }

// RunOne is Run with one check, after info.kind, which says what is checked. A check that inspects what others have
// left runs after two that pass secrets.
func RunOne(ctx context.Context, cfg Config, id string) (*Report, error) {
	before := map[string][]string{}
	one := checks[slices.IndexFunc(checks, func(c *Check) bool { return c.ID == id })]
	switch {
	case one.last:
		before["call.away"], before["work.whole"] = []string{"info.kind"}, []string{"info.kind"}
		before[id] = []string{"call.away", "work.whole"}
	case len(one.after) > 0:
		before[id] = []string{"info.kind"}
	}
	if len(one.after) > 0 {
		before["info.kind"] = nil
	} else {
		before[id] = nil
	}
	var some []*Check
	for _, c := range checks {
		if after, wanted := before[c.ID]; wanted {
			alone := *c
			alone.after = after
			some = append(some, &alone)
		}
	}
	return runChecks(ctx, cfg, some)
}
