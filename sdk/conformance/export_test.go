package conformance

import (
	"context"
	"slices"
	"time"
)

// Patience sets how long a plugin may take to end. For plugins that never end it can be shorter than the default,
// which allows for a busy machine.
func Patience(d time.Duration) { stopTime, afterCancel = d, d }

// RunOne is Run with one check and those that it depends on, or with all checks if the one inspects what the
// others have left.
func RunOne(ctx context.Context, cfg Config, id string) (*Report, error) {
	byID := map[string]*Check{}
	for _, c := range checks {
		byID[c.ID] = c
	}
	if byID[id].last {
		return Run(ctx, cfg)
	}
	wanted := map[*Check]bool{}
	var want func(id string)
	want = func(id string) {
		if c := byID[id]; !wanted[c] {
			wanted[c] = true
			for _, before := range c.after {
				want(before)
			}
		}
	}
	want(id)
	return runChecks(ctx, cfg, slices.DeleteFunc(slices.Clone(checks), func(c *Check) bool { return !wanted[c] }))
}
