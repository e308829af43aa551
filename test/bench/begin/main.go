// Command begin begins the results of the benchmarks: it looks whether the machine is idle, and writes down what
// machine it is. On a machine where others are busy it refuses, since numbers from there mislead.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/pannier/pannier/test/bench/table"
)

func main() {
	out := flag.String("out", "", "the file to write, whose name ends in .json")
	version := flag.String("version", "", "what is measured")
	force := flag.Bool("force", false, "measure on a busy machine")
	flag.Parse()
	if err := begin(*out, *version, *force); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func begin(out, version string, force bool) error {
	const period = 3 * time.Second
	others, err := look(period)
	if err != nil {
		return fmt.Errorf("look what this machine does: %w", err)
	}
	if err := others.refuse(); err != nil {
		if !force {
			return err
		}
		fmt.Fprintln(os.Stderr, "bench: going on, though", err)
	}
	m, err := machine()
	if err != nil {
		return fmt.Errorf("describe this machine: %w", err)
	}
	m.Busy, m.Version, m.Time = others.percent, version, time.Now().UTC()
	return (&table.Report{Machine: m}).Write(out)
}
