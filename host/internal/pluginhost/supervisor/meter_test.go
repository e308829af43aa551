package supervisor

import (
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// A process is measured less often the longer it is far from its limits.
func TestNextLook(t *testing.T) {
	m := &meter{spec: Plugin{Limits: Limits{Memory: 100 << 20, Processes: 100}}}
	small, memory, threads := process.Usage{Memory: 1 << 20, Processes: 10}, process.Usage{Memory: 51 << 20},
		process.Usage{Processes: 51}
	for name, c := range map[string]struct {
		pause time.Duration
		used  process.Usage
		want  time.Duration
	}{
		"soon after its start":          {firstLook, small, 2 * firstLook},
		"at most so rarely":             {longestLook, small, longestLook},
		"often, as it has much memory":  {longestLook, memory, firstLook},
		"often, as it has many threads": {longestLook, threads, firstLook},
	} {
		if got := m.nextLook(c.pause, c.used); got != c.want {
			t.Errorf("%s: it is measured again after %s, want %s", name, got, c.want)
		}
	}
}
