package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
)

// The real benchstat judges rows of two runs.
func TestCompare(t *testing.T) {
	benchstat := tool(t, "benchstat")
	around := func(v float64) []float64 { return []float64{0.98 * v, 0.99 * v, v, 1.01 * v, 1.02 * v, 1.03 * v} }
	write := func(name string, rows ...table.Row) string {
		path := filepath.Join(t.TempDir(), name)
		if err := (&table.Report{Sections: []table.Section{{Title: "Starts / stops", Rows: rows}}}).Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old := write(
		"old.json",
		table.Of("slower, p50", "ms", around(1)),
		table.Of("faster, p50", "ms", around(1)),
		table.Of("fewer a second", "/s", around(5000)),
		table.Of("ratio that must be high", "", around(2)).Least(1.5),
		table.Of("the same", "µs", around(120)),
		table.Row{What: "one sample", Value: 40, Unit: "MiB", AtMost: 30},
		table.Row{What: "gone", Value: 40, Unit: "MiB"},
	)
	now := write(
		"new.json",
		table.Of("slower, p50", "ms", around(1.5)),
		table.Of("faster, p50", "ms", around(0.5)),
		table.Of("fewer a second", "/s", around(4000)),
		table.Of("ratio that must be high", "", around(1)).Least(1.5),
		table.Of("the same", "µs", around(120.1)),
		table.Row{What: "one sample", Value: 80, Unit: "MiB", AtMost: 30},
	)
	said := func(old, now []string) string {
		var out bytes.Buffer
		if err := compare(&out, benchstat, old, now); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	got := said([]string{old}, []string{now})
	for _, want := range []string{
		"worse:  Starts / stops: slower, p50: 1.005 → 1.508 ms (+50.00%, p=0.002 n=6)\n",
		"better: Starts / stops: faster, p50: 1.005 → 0.5025 ms (-50.00%, p=0.002 n=6)\n",
		"worse:  Starts / stops: fewer a second: 5025 → 4020 /s (-20.00%",
		"worse:  Starts / stops: ratio that must be high: 2.01 → 1.005",
		"bench-compare: 6 rows, 3 worse, 1 better, 1 with too few samples for a verdict, 1 in one only\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	four := func(file string) []string { return []string{file, file, file, file} }
	if got := said(four(old), four(now)); !strings.Contains(got, "worse:  Starts / stops: one sample: 40 → 80 MiB") {
		t.Errorf("four runs with one sample each give no verdict:\n%s", got)
	}
}

// tool returns the path of a pinned development tool.
func tool(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(testbin.Root(), "tools", "tool"), name)
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	return strings.TrimSpace(string(path))
}
