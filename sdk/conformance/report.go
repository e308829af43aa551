package conformance

import (
	"context"
	"slices"
	"time"
)

// Report is the result of a run.
type Report struct {
	Binary  string   `json:"binary"`
	Name    string   `json:"name,omitempty"`
	Version string   `json:"version,omitempty"`
	Kind    string   `json:"kind,omitempty"`
	Results []Result `json:"results"`
	// Left lists what the plugin has left behind: mounts, which the kit then unmounts, and volumes, snapshots and
	// tokens that it could not remove.
	Left []string `json:"left,omitempty"`
}

// Result of one check.
type Result struct {
	ID     string `json:"id"`
	Says   string `json:"says"`
	Status Status `json:"status"`
	// Reason explains why it failed or was skipped.
	Reason string `json:"reason,omitempty"`
	// Fix says how the author can correct a failure.
	Fix  string        `json:"fix,omitempty"`
	Took time.Duration `json:"took_ns"`
}

// Status of a check.
type Status string

// The possible statuses.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Count returns the number of results with a status.
func (r *Report) Count(s Status) int {
	n := 0
	for i := range r.Results {
		if r.Results[i].Status == s {
			n++
		}
	}
	return n
}

// Check is one requirement that a plugin is tested for.
type Check struct {
	// ID is stable, such as "stop.exit".
	ID string
	// Says describes a plugin that passes.
	Says string
	// Fix says how the author can correct a failure.
	Fix string
	// kind is the kind that it is for, such as "storage.v1"; empty: all. Reports on other kinds do not have it.
	kind string
	// after are the checks that must have passed; otherwise this one is skipped.
	after []string
	// last makes the check run after all others, because it inspects what they have left.
	last bool
	run  func(ctx context.Context, r *run, c *checking) error
}

// checks are all checks, in the order of the report: each comes after the checks that it depends on.
var checks = slices.Concat(startChecks, configChecks, healthChecks, callChecks, workChecks, mountChecks, dataChecks,
	volumeChecks, copyChecks, fingerprintChecks, listChecks, tokenChecks, deviceChecks, stopChecks, frontendChecks,
	secretChecks)

// Checks returns all checks, in the order of a report.
func Checks() []Check {
	out := make([]Check, len(checks))
	for i, c := range checks {
		out[i] = *c
	}
	return out
}
