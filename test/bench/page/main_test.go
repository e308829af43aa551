package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
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
	if err := os.WriteFile(page, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(results, page); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); strings.Count(got, "| claim | 2 ms | ≤ 1 ms | 2.00 | **missed** |") != 1 ||
		strings.Contains(got, "old") || !strings.HasPrefix(got, head) {
		t.Errorf("the page is\n%s", got)
	}
	committed, err := os.ReadFile(filepath.Join(testbin.Root(), "test/bench/TABLE.md"))
	if err != nil || !strings.HasPrefix(string(committed), head) {
		t.Errorf("test/bench/TABLE.md was not written by this command: %v", err)
	}
}
