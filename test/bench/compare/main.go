// Command compare says what got worse between two results of the benchmarks:
//
//	compare -benchstat PATH "OLD.json ..." "NEW.json ..."
//
// benchstat judges whether a difference is more than noise. It needs at least four samples of a row on both sides;
// several files give a row more of them.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	benchstat := flag.String("benchstat", "benchstat", "the path of benchstat")
	flag.Parse()
	old, now := strings.Fields(flag.Arg(0)), strings.Fields(flag.Arg(1))
	if len(old) == 0 || len(now) == 0 {
		fmt.Fprintln(os.Stderr, `bench-compare: say what to compare: make bench-compare OLD="a.json ..." NEW="b.json ..."`)
		os.Exit(2)
	}
	if err := compare(os.Stdout, *benchstat, old, now); err != nil {
		fmt.Fprintln(os.Stderr, "bench-compare:", err)
		os.Exit(1)
	}
}

func compare(w io.Writer, benchstat string, oldFiles, newFiles []string) error {
	old, err := load(oldFiles)
	if err != nil {
		return err
	}
	now, err := load(newFiles)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	before, after := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	if err := os.WriteFile(before, old.format(), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(after, now.format(), 0o600); err != nil {
		return err
	}
	changes, err := judge(benchstat, before, after)
	if err != nil {
		return err
	}
	report(w, old, now, changes)
	return nil
}

// report lists the rows that benchstat sees a difference in, the worse ones first.
func report(w io.Writer, old, now results, changes map[string]change) {
	var worse, better []string
	few, both := 0, 0
	for _, name := range now.names() {
		if _, ok := old[name]; !ok {
			continue
		}
		both++
		row, c := now[name], changes[name]
		if min(len(old[name].Samples), len(row.Samples)) < fewest {
			few++
			continue
		}
		if c.old == c.now || c.by == "~" {
			continue
		}
		line := fmt.Sprintf("%s: %.4g → %.4g %s (%s, %s)", row.What, c.old, c.now, row.Unit, c.by, c.chance)
		if (c.now > c.old) == row.HigherIsBetter() {
			better = append(better, "better: "+line)
		} else {
			worse = append(worse, "worse:  "+line)
		}
	}
	for _, line := range append(worse, better...) {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "bench-compare: %d rows, %d worse, %d better, %d with too few samples for a verdict, %d in one only\n",
		both, len(worse), len(better), few, len(old)+len(now)-2*both)
}
