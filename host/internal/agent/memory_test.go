package agent

import (
	"runtime/debug"
	"testing"
	"time"
)

// While much is allocated, as much is allocated between two collections whatever is in use, within bounds.
func TestPace(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	const mib = 1 << 20
	p := &pace{at: time.Now(), percent: gcPercent}
	for n, c := range []struct {
		after time.Duration
		mib   uint64 // allocated
		live  uint64
		busy  bool
		want  int
	}{
		{time.Second, 10, 8, false, 50},
		{time.Second, 20, 8, true, 400},
		{100 * time.Millisecond, 2, 16, true, 200},
		{100 * time.Millisecond, 32, 32, true, 100},
		{100 * time.Millisecond, 32, 128, true, 50},
		{100 * time.Millisecond, 32, 0, true, 400},
		{10 * time.Second, 32, 8, false, 50},
	} {
		h := heap{live: c.live * mib, allocated: p.allocated + c.mib*mib}
		if busy := p.busy(p.at.Add(c.after), h); busy != c.busy {
			t.Errorf("before collection %d it is busy: %t", n, busy)
		}
		p.collected(p.at.Add(c.after), h)
		if got := debug.SetGCPercent(p.percent); got != c.want {
			t.Errorf("collection %d, %v after the one before and %d MiB later, with %d MiB in use: GOGC=%d, want %d", n,
				c.after, c.mib, c.live, got, c.want)
		}
	}
}
