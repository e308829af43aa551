// Package measure runs the sections of the benchmarks, each as a benchmark of its own: what one leaves running ends
// with it, and one that fails leaves the rows of the others. It may be imported by tests only.
package measure

import (
	"flag"
	"fmt"
	"iter"
	"regexp"
	"testing"
	"time"

	"github.com/pannier/pannier/test/bench/table"
)

var (
	out  = flag.String("out", "", "the file with the machine, from test/bench/begin, to which the rows are added")
	only = flag.String("only", "", "measure only the sections whose names match this regular expression")
	full = flag.Bool("full", false, "measure without bounds of time, and the sizes that take longer")
)

// Section takes the measurements of one group of rows once, regardless of b.N, and adds the rows to the results.
func Section(b *testing.B, name, title string, do func(b *testing.B, r *table.Section)) {
	b.Helper()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		b.Fatal(err)
	}
	if !wanted.MatchString(name) {
		return
	}
	b.Run(name, func(b *testing.B) {
		r := table.Section{Title: title}
		at := time.Now()
		do(b, &r)
		r.Seconds = time.Since(at).Seconds()
		if err := keep(b, r); err != nil {
			b.Fatal(err)
		}
	})
}

func keep(b *testing.B, s table.Section) error {
	if *out == "" {
		fmt.Printf("\n%s", s)
		return nil
	}
	all, err := table.Read(*out)
	if err != nil {
		return fmt.Errorf("add the rows to the results: %w", err)
	}
	all.Sections = append(all.Sections, s)
	return all.Write(*out)
}

// Full reports whether sizes that take longer than `make bench` may are measured too.
func Full() bool { return *full }

// Turns counts up to n, as long as the time lasts, but at least to two: the repetitions of a measurement. A full run
// has no bound of time.
func Turns(n int, bound time.Duration) iter.Seq[int] {
	return func(yield func(int) bool) {
		at := time.Now()
		for turn := range n {
			if turn >= 2 && !*full && time.Since(at) > bound {
				return
			}
			if !yield(turn) {
				return
			}
		}
	}
}
