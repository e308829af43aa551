package managed

import (
	"testing"
	"time"
)

// A process is reported as busy once in each spell of a minute.
func TestSpell(t *testing.T) {
	busy := BusyRule{Cores: 0.9, After: time.Minute}
	began := time.Now()
	for name, row := range map[string]struct {
		cores []float64 // in each 10 s
		want  []int     // after how many of them it is told
	}{
		"idle":               {cores: []float64{0, 0.1, 0, 0.5, 0.8, 0.1, 0, 0, 0}},
		"busy":               {cores: []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, want: []int{6}},
		"two cores":          {cores: []float64{2, 2, 2, 2, 2, 2}, want: []int{6}},
		"not for a minute":   {cores: []float64{1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1}},
		"busy again":         {cores: []float64{1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1}, want: []int{6, 13}},
		"a child that ended": {cores: []float64{1, 1, -5, 1, 1, 1, 1, 1, 1}, want: []int{9}},
	} {
		t.Run(name, func(t *testing.T) {
			var s busySpell
			var cpu time.Duration
			var got []int
			if s.update(began, cpu, busy) {
				t.Error("busy at the first look")
			}
			for n, cores := range row.cores {
				cpu += time.Duration(cores * float64(10*time.Second))
				if s.update(began.Add(time.Duration(n+1)*10*time.Second), cpu, busy) {
					got = append(got, n+1)
				}
			}
			if len(got) != len(row.want) || len(got) > 0 && got[0] != row.want[0] || len(got) > 1 && got[1] != row.want[1] {
				t.Errorf("told after %v, want %v", got, row.want)
			}
		})
	}
}
