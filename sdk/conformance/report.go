package conformance

import "time"

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
