package conformance

import (
	"context"
	"slices"
	"time"
)

// Report is what a run has found.
type Report struct {
	Binary  string   `json:"binary"`
	Name    string   `json:"name,omitempty"`
	Version string   `json:"version,omitempty"`
	Kind    string   `json:"kind,omitempty"`
	Results []Result `json:"results"`
	// Left is what the plugin has left mounted: the kit does not touch it, since it may
	// be somebody's data.
	Left []string `json:"left,omitempty"`
}

// Result of one check.
type Result struct {
	ID     string `json:"id"`
	Says   string `json:"says"`
	Status Status `json:"status"`
	// Reason why it failed or was skipped.
	Reason string `json:"reason,omitempty"`
	// Fix says what the author does when it fails.
	Fix  string        `json:"fix,omitempty"`
	Took time.Duration `json:"took_ns"`
}

// Status of a check.
type Status string

// The statuses.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Count of the results with a status.
func (r *Report) Count(s Status) int {
	n := 0
	for i := range r.Results {
		if r.Results[i].Status == s {
			n++
		}
	}
	return n
}

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
