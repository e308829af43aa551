package procfs

import (
	"fmt"
	"strings"
	"testing"
)

// Every process chooses its name, which stands in the middle of its stat file.
func FuzzStat(f *testing.F) {
	f.Add(7, "a) S 1 (b", byte('S'), 1, uint64(99))
	f.Fuzz(func(t *testing.T, pid int, name string, state byte, parent int, start uint64) {
		if strings.Contains(name, "\x00") || state < 'A' || state > 'z' {
			t.Skip("the kernel has no such names and states")
		}
		s, err := parseStat(fmt.Sprintf("%d (%s) %c %d 3 4 0 -1 0 0 0 0 0 5 6 7 8 20 0 9 0 %d 0\n", pid, name, state, parent, start))
		if err != nil || s.PID != pid || s.State != state || s.Parent != parent || s.StartTime != start || s.Threads != 9 {
			t.Errorf("of %d (%q) %c %d, started at %d: %+v, %v", pid, name, state, parent, start, s, err)
		}
	})
}
