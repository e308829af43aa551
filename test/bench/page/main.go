// Command page writes the results of the benchmarks as a page:
//
//	page RESULTS.json test/bench/TABLE.md
package main

import (
	"fmt"
	"os"

	"github.com/pannier/pannier/test/bench/table"
)

const head = "# The results of the benchmarks\n\nOne run of `make bench` on an idle machine, written here by " +
	"`make bench-page`. [NOTES.md](NOTES.md) says what is missed and why.\n\n"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: page RESULTS.json PAGE.md")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-page:", err)
		os.Exit(1)
	}
}

func write(results, page string) error {
	report, err := table.Read(results)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(head+report.String()), 0o644)
}
