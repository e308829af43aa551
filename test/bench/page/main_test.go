package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
)

func TestPage(t *testing.T) {
	dir := t.TempDir()
	results, page := filepath.Join(dir, "results.json"), filepath.Join(dir, "page.md")
	report := &table.Report{Sections: []table.Section{{Title: "Claims", Rows: []table.Row{
		{What: "claim", Value: 2, Unit: "ms", AtMost: 1},
	}}}}
	if err := report.Write(results); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it replaces what the first has written
		if err := write(results, page); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); strings.Count(got, "| claim | 2 ms | ≤ 1 ms | 2.00 | **missed** |") != 1 ||
		strings.Contains(got, "old") || !strings.HasPrefix(got, "before\n"+begin) || !strings.HasSuffix(got, end+"after\n") {
		t.Errorf("the page is\n%s", got)
	}
	if err := os.WriteFile(page, []byte("no results here\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(results, page); err == nil || !strings.Contains(err.Error(), "<!-- results -->") {
		t.Errorf("a page without a place for results: %v", err)
	}
}
