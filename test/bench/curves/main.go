// Command curves says how what `make bench-plots` has measured grows, and writes it down for test/bench/plots, which
// draws it:
//
//	curves growth.json curves.json
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/pannier/pannier/test/bench/table"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: curves growth.json curves.json")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-plots:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, in, out string) error {
	r, err := table.Read(in)
	if err != nil {
		return err
	}
	var all []curve
	for _, s := range r.Sections {
		for _, c := range curvesOf(s) {
			all = append(all, c)
			fmt.Fprintf(w, "%s: %s\n", c.Title, c.Words)
		}
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(out, text, 0o644)
}
