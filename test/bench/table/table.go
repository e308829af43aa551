// Package table holds the results of the benchmarks: sections of rows, each with a number and its bound. The
// benchmarks of several packages add to one file, which is written as JSON and, beside it, as a table for people.
// It may be imported by tests and by the commands of the benchmarks only.
package table

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Report is all results of one run.
type Report struct {
	Machine  Machine   `json:"machine"`
	Sections []Section `json:"sections"`
}

// Machine is the machine of the measurements as it was before them.
type Machine struct {
	CPU        string    `json:"cpu"`
	Cores      int       `json:"cores"`
	MemoryGiB  uint64    `json:"memory_gib"`
	Kernel     string    `json:"kernel"`
	Go         string    `json:"go"`
	FileSystem string    `json:"file_system"`
	SyncP50    float64   `json:"sync_p50_ms"` // a write of 4 KiB and its fdatasync
	SyncP99    float64   `json:"sync_p99_ms"`
	Busy       float64   `json:"busy_percent"` // used by others, of one core
	Version    string    `json:"version"`      // of what is measured
	Time       time.Time `json:"time"`
}

func (m Machine) String() string {
	return fmt.Sprintf("Machine: %s, %d cores, %d GiB of memory; Linux %s; %s; disk: %s, a write of 4 KiB and its "+
		"fdatasync take %.2f ms (p50), %.2f ms (p99); other processes used %.0f %% of a core before the run.",
		m.CPU, m.Cores, m.MemoryGiB, m.Kernel, m.Go, m.FileSystem, m.SyncP50, m.SyncP99, m.Busy)
}

// Section is a group of rows that are measured together.
type Section struct {
	Title   string  `json:"title"`
	Seconds float64 `json:"seconds"` // its measurement took
	Rows    []Row   `json:"rows"`
}

// Add adds rows. A row whose text the section has already gets a number.
func (s *Section) Add(rows ...Row) {
	for _, row := range rows {
		what := row.What
		for n := 2; s.has(row.What); n++ {
			row.What = fmt.Sprintf("%s (%d)", what, n)
		}
		s.Rows = append(s.Rows, row)
	}
}

func (s Section) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "| **%s** (%.0f s) | | | | |\n", s.Title, s.Seconds)
	for _, row := range s.Rows {
		fmt.Fprintln(&text, row)
	}
	return text.String()
}

func (s *Section) has(what string) bool {
	return slices.ContainsFunc(s.Rows, func(row Row) bool { return row.What == what })
}

// Row is one number. A row without a target is only for comparison.
type Row struct {
	What    string  `json:"what"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
	AtLeast float64 `json:"at_least,omitempty"`
	// Unfinished: the value is the time after which the measurement was given up.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Missed reports whether the row has a target and misses it.
func (r Row) Missed() bool {
	switch {
	case r.AtMost > 0:
		return r.Value > r.AtMost || r.Unfinished
	case r.AtLeast > 0:
		return r.Value < r.AtLeast
	}
	return false
}

func (r Row) String() string {
	target, ratio, verdict := "", "", ""
	if bound := max(r.AtMost, r.AtLeast); bound > 0 {
		sign := "≤ "
		if r.AtLeast > 0 {
			sign = "≥ "
		}
		target, ratio, verdict = sign+number(bound, r.Unit), fmt.Sprintf("%.2f", r.Value/bound), "met"
		if r.Missed() {
			verdict = "**missed**"
		}
	}
	value := number(r.Value, r.Unit)
	if r.Unfinished {
		value = "not within " + value
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |", r.What, value, target, ratio, verdict)
}

func (r *Report) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n| | measured | target | measured/target | |\n|---|---|---|---|---|\n", r.Machine)
	for _, s := range r.Sections {
		text.WriteString(s.String())
	}
	fmt.Fprintf(&text, "\n%s\n", r.Summary())
	return text.String()
}

// Summary counts the rows, and those that miss their targets.
func (r *Report) Summary() string {
	rows, missed := 0, 0
	for _, s := range r.Sections {
		rows += len(s.Rows)
		for _, row := range s.Rows {
			if row.Missed() {
				missed++
			}
		}
	}
	return fmt.Sprintf("bench: %d rows, %d missed", rows, missed)
}

// Read reads a report that Write has written.
func Read(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Write writes the report to a file whose name ends in .json, and the table to the same name with .txt.
func (r *Report) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(path, ".json")+".txt", []byte(r.String()), 0o644)
}

func number(v float64, unit string) string {
	digits := 2
	switch {
	case v >= 1000 || v == float64(int(v)):
		digits = 0
	case v >= 100:
		digits = 1
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, v, unit))
}
