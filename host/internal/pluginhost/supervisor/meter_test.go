package supervisor

import (
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// A process is measured rarely only while it does nothing and is far from its limits.
func TestNextLook(t *testing.T) {
	m := &meter{spec: Plugin{Limits: Limits{Memory: 100 << 20, Processes: 100}}}
	at := time.Unix(1_000_001, 0) // a second after one at which all are measured
	small, memory, threads := process.Usage{Memory: 1 << 20, Processes: 10}, process.Usage{Memory: 51 << 20},
		process.Usage{Processes: 51}
	for name, c := range map[string]struct {
		pause time.Duration
		used  process.Usage
		idle  bool
		want  time.Duration
	}{
		"soon after its start":              {firstLook, small, true, 2 * firstLook},
		"not again and again":               {longestLook, small, false, longestLook - time.Second},
		"rarely, as it does nothing":        {longestLook, small, true, idleLook - time.Second},
		"often, as it has much memory":      {idleLook, memory, true, firstLook},
		"often, as it has many threads":     {idleLook, threads, true, firstLook},
		"less often, as it has less memory": {firstLook, small, false, 2 * firstLook},
	} {
		if got := m.nextLook(c.pause, at, c.used, c.idle); got != c.want {
			t.Errorf("%s: it is measured again after %s, want %s", name, got, c.want)
		}
	}
}

// A process does nothing if it has hardly used the processor since the look before; the first look says nothing.
func TestRested(t *testing.T) {
	var s busySpell
	at := time.Unix(1_000_000, 0)
	for n, look := range []struct {
		after, used time.Duration
		want        bool
	}{
		{0, time.Second, false},
		{2 * time.Second, 10 * time.Millisecond, true},
		{2 * time.Second, 20 * time.Millisecond, false},
		{10 * time.Second, 50 * time.Millisecond, true},
		{10 * time.Second, 60 * time.Millisecond, false},
	} {
		at = at.Add(look.after)
		cpu := s.seenCPU + look.used
		if got := s.rested(at, cpu); got != look.want {
			t.Errorf("look %d: rested is %t", n, got)
		}
		s.update(at, cpu, defaultBusy)
	}
}

// A call wakes the meter of a process that is measured rarely, once.
func TestACallWakesTheMeter(t *testing.T) {
	m := &meter{woken: make(chan struct{}, 1)}
	g := &generation{run: &pluginRunner{meter: m}, retiring: make(chan struct{}), drained: make(chan struct{})}
	call := func() {
		release, ok := g.acquire()
		if !ok {
			t.Fatal("it takes no call")
		}
		release()
	}
	call()
	if len(m.woken) != 0 {
		t.Fatal("the meter of a busy process was woken")
	}
	m.resting.Store(true)
	call()
	call()
	if len(m.woken) != 1 {
		t.Fatalf("the meter was woken %d times by two calls, want once", len(m.woken))
	}
}
