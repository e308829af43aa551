package conformance

import (
	"context"
	"slices"
)

// Check is one thing that is asked of a plugin.
type Check struct {
	// ID is stable, such as "stop.exit".
	ID string
	// Says what is true of a plugin that passes.
	Says string
	// Fix says what the author does when it fails.
	Fix string
	// after are the checks that must have passed, or this one is skipped.
	after []string
	// last says that it looks at what all others have left.
	last bool
	run  func(ctx context.Context, r *run, c *checking) error
}

// checks are all of them, in the order of the report. One comes after those that it
// builds on.
var checks = slices.Concat(startChecks, configChecks, healthChecks, callChecks, workChecks, stopChecks, secretChecks)

// Checks are all checks, in the order of a report.
func Checks() []Check {
	out := make([]Check, len(checks))
	for i, c := range checks {
		out[i] = *c
	}
	return out
}
