package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit float64
		ys    []float64 // at 100, 1,000 and so on
		want  string
	}{
		{"flat", 10, []float64{2, 2, 2}, "2 ms at 100, 2 ms at 10,000 volumes; slope 0.00, at the end 0.00; its limit of 10 ms is not in sight"},
		{"in proportion", 400, []float64{1, 10, 100}, "slope 1.00, at the end 1.00; it goes on to its limit of 400 ms at about 40,000"},
		{"square", 1e6, []float64{1, 100, 1e4}, "slope 2.00, at the end 2.00; it goes on to its limit of 1,000,000 ms at about 100,000"},
		{"bent", 20, []float64{2, 2, 20}, "slope 0.50, at the end 1.00; it goes on to its limit of 20 ms at about 10,000"},
		{"steeper at the end", 16, []float64{2, 2, 4}, "slope 0.15, at the end 0.30; it goes on to its limit of 16 ms at about 1,000,000"},
		{"passed", 5, []float64{1, 10, 100}, "its limit of 5 ms was passed at about 500"},
		{"passed everywhere", 0.5, []float64{1, 10, 100}, "its limit of 0.5 ms is passed everywhere"},
		{"less", 10, []float64{4, 2, 1}, "slope -0.30, at the end -0.30; its limit of 10 ms is not in sight"},
		{"far", 10, []float64{1, 1, 1.01}, "its limit of 10 ms is not in sight"},
		{"no limit", 0, []float64{1, 10}, "1 ms at 100, 10 ms at 1,000 volumes; slope 1.00, at the end 1.00"},
		{"one point", 10, []float64{1}, "1 ms at 100 volumes only"},
	} {
		s := table.Section{Title: "volumes"}
		for n, y := range c.ys {
			s.Add(table.Row{What: "claim", At: math.Pow(10, float64(n+2)), Value: y, Unit: "ms", AtMost: c.limit})
		}
		all := curvesOf(s)
		if len(all) != 1 || len(all[0].Points) != len(c.ys) || !strings.HasSuffix(all[0].Words, c.want) {
			t.Errorf("%s: the curves are %+v, want one that ends with %q", c.name, all, c.want)
		}
	}
}

// Two curves are drawn for real.
func TestPlots(t *testing.T) {
	dir := t.TempDir()
	volumes := table.Section{Title: "volumes"}
	for x := 100.0; x <= 1e6; x *= 10 {
		volumes.Add(
			table.Row{What: "claim, p50", At: x, Value: 0.15, Unit: "ms", AtMost: 1.5},
			table.Row{What: "restart", At: x, Value: x / 1e5, Unit: "s"},
			table.Row{What: "failed", At: x, Value: 0}, // has no logarithm
		)
	}
	growth, curves := filepath.Join(dir, "growth.json"), filepath.Join(dir, "curves.json")
	if err := (&table.Report{Sections: []table.Section{volumes}}).Write(growth); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := run(&said, growth, curves); err != nil {
		t.Fatal(err)
	}
	if want := "restart over volumes: 0.001 s at 100, 10 s at 1,000,000 volumes; slope 1.00"; !strings.Contains(said.String(),
		want) {
		t.Errorf("it says %q, want %q", said.String(), want)
	}
	draw := exec.Command("go", "run", ".", curves, dir)
	draw.Dir = filepath.Join(testbin.Root(), "test/bench/plots")
	draw.Env = append(os.Environ(), "GOWORK=off")
	if out, err := draw.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", draw, err, out)
	}
	pictures, _ := filepath.Glob(filepath.Join(dir, "*.svg")) // the pattern is valid
	if len(pictures) != 2 {
		t.Errorf("the pictures are %q, want two", pictures)
	}
	for file, want := range map[string][]string{
		"claim-p50-over-volumes.svg": {"claim, p50 over volumes", "volumes", "ms", "not in sight"},
		"restart-over-volumes.svg":   {"restart over volumes", "slope 1.00"},
	} {
		texts := textOf(t, filepath.Join(dir, file))
		for _, w := range want {
			if !strings.Contains(texts, w) {
				t.Errorf("%s does not say %q: %s", file, w, texts)
			}
		}
	}
}

// textOf returns all text of an SVG.
func textOf(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []string
	for d := xml.NewDecoder(file); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return strings.Join(all, "\n")
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if text, ok := token.(xml.CharData); ok {
			all = append(all, string(text))
		}
	}
}
