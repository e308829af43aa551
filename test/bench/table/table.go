// Package table formats the results of the benchmarks: sections of rows, each with a number and its bound.
// The benchmarks of several packages write one table. It may be imported by tests only.
package table

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Report is a table of results.
type Report struct {
	// Machine describes the machine of the measurements.
	Machine string
	lines   []string
}

// Row is one number. A row without a bound is only for comparison.
type Row struct {
	What    string
	Value   float64
	Unit    string
	AtMost  float64 // 0: no such bound
	AtLeast float64 // 0: no such bound
}

// Section begins a group of rows.
func (r *Report) Section(name string) {
	r.lines = append(r.lines, fmt.Sprintf("| **%s** | | | | |", name))
}

// Add adds rows to the section.
func (r *Report) Add(rows ...Row) {
	for _, row := range rows {
		target, ratio, verdict := "", "", ""
		bound, missed := row.AtMost, row.Value > row.AtMost
		sign := "≤ "
		if row.AtLeast > 0 {
			bound, missed, sign = row.AtLeast, row.Value < row.AtLeast, "≥ "
		}
		if bound > 0 {
			target = sign + number(bound, row.Unit)
			ratio = fmt.Sprintf("%.2f", row.Value/bound)
			verdict = "met"
			if missed {
				verdict = "**missed**"
			}
		}
		r.lines = append(r.lines, fmt.Sprintf("| %s | %s | %s | %s | %s |", row.What, number(row.Value, row.Unit), target,
			ratio, verdict))
	}
}

func (r *Report) String() string {
	return r.Machine + "\n\n| | measured | target | measured/target | |\n|---|---|---|---|---|\n" + r.rows()
}

func (r *Report) rows() string { return strings.Join(r.lines, "\n") + "\n" }

// Write writes the table to a file. If the file exists, the rows are added to its table.
func (r *Report) Write(path string) error {
	before, err := os.ReadFile(path)
	text := string(before) + r.rows()
	if errors.Is(err, fs.ErrNotExist) {
		text = r.String()
	} else if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
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

// Samples are durations of the same operation, in any order.
type Samples []time.Duration

// Quantile returns the smallest sample that is not below a share q of all samples.
func (s Samples) Quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// P50 returns the median in milliseconds.
func (s Samples) P50() float64 { return ms(s.Quantile(0.50)) }

// P99 returns the 99th percentile in milliseconds.
func (s Samples) P99() float64 { return ms(s.Quantile(0.99)) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Median returns the median of at least one number.
func Median(all []float64) float64 {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}
