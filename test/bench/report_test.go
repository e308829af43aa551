package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// report is the table: sections of rows.
type report struct {
	machine string
	lines   []string
}

// row is one number. Without a target it is there to be compared with.
type row struct {
	what   string
	value  float64
	unit   string
	target float64 // at most; 0: none
}

func (r *report) section(name string) {
	r.lines = append(r.lines, fmt.Sprintf("| **%s** | | | | |", name))
}

func (r *report) add(rows ...row) {
	for _, row := range rows {
		target, ratio, verdict := "", "", ""
		if row.target > 0 {
			target = "≤ " + number(row.target, row.unit)
			ratio = fmt.Sprintf("%.2f", row.value/row.target)
			verdict = "met"
			if row.value > row.target {
				verdict = "**missed**"
			}
		}
		r.lines = append(r.lines, fmt.Sprintf("| %s | %s | %s | %s | %s |", row.what, number(row.value, row.unit), target, ratio, verdict))
	}
}

func (r *report) String() string {
	return r.machine + "\n\n| | measured | target | measured/target | |\n|---|---|---|---|---|\n" + strings.Join(r.lines, "\n") + "\n"
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

// samples are durations of one thing, in no order.
type samples []time.Duration

// quantile is the smallest sample that q of all are not above.
func (s samples) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (s samples) p50() float64 { return ms(s.quantile(0.50)) }
func (s samples) p99() float64 { return ms(s.quantile(0.99)) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
