// Command page writes the results of the benchmarks into the page about them:
//
//	page RESULTS.json docs/benchmarks.md
//
// What stands between the page's lines <!-- results --> and <!-- end of results --> is replaced.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/pannier/pannier/test/bench/table"
)

// The lines around the results.
const (
	begin = "<!-- results -->\n"
	end   = "<!-- end of results -->\n"
)

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
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(page, []byte(before+begin+"\n"+report.String()+"\n"+end+after), 0o644)
}
