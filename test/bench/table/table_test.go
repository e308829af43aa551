package table

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMissed(t *testing.T) {
	for _, c := range []struct {
		name string
		row  Row
		want bool
	}{
		{"no target", Row{Value: 5}, false},
		{"below at most", Row{Value: 4, AtMost: 5}, false},
		{"equal to at most", Row{Value: 5, AtMost: 5}, false},
		{"above at most", Row{Value: 5.01, AtMost: 5}, true},
		{"given up before at most", Row{Value: 4, AtMost: 5, Unfinished: true}, true},
		{"above at least", Row{Value: 1.6, AtLeast: 1.5}, false},
		{"equal to at least", Row{Value: 1.5, AtLeast: 1.5}, false},
		{"below at least", Row{Value: 1.4, AtLeast: 1.5}, true},
	} {
		if got := c.row.Missed(); got != c.want {
			t.Errorf("%s: missed is %v, want %v", c.name, got, c.want)
		}
		if shown := strings.Contains(c.row.String(), "missed"); shown != c.want {
			t.Errorf("%s: the table says %s", c.name, c.row)
		}
	}
}

func TestReportIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	r := &Report{Machine: Machine{CPU: "Z80", Cores: 1, Busy: 3, Time: time.Unix(1, 0).UTC()}, Sections: []Section{{
		Title: "Starts", Seconds: 4.4, Rows: []Row{
			{What: "start", Value: 2, Unit: "ms", AtMost: 1},
			{What: "stop", Value: 1, Unit: "ms", AtMost: 1},
			{What: "joined", Value: 60, Unit: "s", AtMost: 60, Unfinished: true},
		},
	}}}
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, r) {
		t.Errorf("read %+v, want %+v", again, r)
	}
	table := again.String()
	for _, want := range []string{
		"| **Starts** (4 s) |", "| start | 2 ms | ≤ 1 ms | 2.00 | **missed** |", "not within 60 s", "Machine: Z80, 1 cores",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table has no %q:\n%s", want, table)
		}
	}
	if lines := strings.Split(strings.TrimSpace(table), "\n"); lines[len(lines)-1] != "bench: 3 rows, 2 missed" {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
}

func TestRowsHaveDifferentNames(t *testing.T) {
	s := &Section{}
	s.Add(Row{What: "a"}, Row{What: "b"}, Row{What: "a"})
	s.Add(Row{What: "a"})
	var names []string
	for _, row := range s.Rows {
		names = append(names, row.What)
	}
	if want := []string{"a", "b", "a (2)", "a (3)"}; !slices.Equal(names, want) {
		t.Errorf("the rows are %q, want %q", names, want)
	}
}

func TestSamplesOfRows(t *testing.T) {
	var slow, fast Samples
	for n := range 60 {
		slow, fast = append(slow, time.Duration(n/10+2)*time.Millisecond), append(fast, time.Millisecond)
	}
	a, b := slow.Row("slow", 0.5), fast.Row("fast", 0.5)
	if a.Value != 5 {
		t.Errorf("the row is %+v, want 5 ms", a)
	}
	if d := Minus("added", a, b).Most(3); d.Value != 4 || d.Unit != "ms" || !d.Missed() {
		t.Errorf("the difference is %+v", d)
	}
	if q := Over("ratio", a, b.In("ms", 2)); q.Value != 2.5 || q.Unit != "" {
		t.Errorf("the ratio is %+v", q)
	}
	if few := (Samples{time.Second}).Row("few", 0.99); few.Value != 1000 {
		t.Errorf("one sample gives %+v", few)
	}
}
