package supervisor

import (
	"testing"
	"time"
)

// A generation is drained when its last user releases it, and cannot be acquired once it is retired.
func TestRetiredGenerationDrains(t *testing.T) {
	g := &generation{
		run: &pluginRunner{meter: &meter{}}, retiring: make(chan struct{}), drained: make(chan struct{}),
	}
	first, ok := g.acquire()
	if !ok {
		t.Fatal("acquire failed")
	}
	second, _ := g.acquire()
	if g.userCount() != 2 {
		t.Errorf("%d users, want 2", g.userCount())
	}
	g.retire()
	g.retire()
	if _, ok := g.acquire(); ok {
		t.Error("a retired generation was acquired")
	}
	first()
	first() // a second release by one user does not count for the other
	if isDrained(g) {
		t.Error("drained, although one user is left")
	}
	second()
	if !isDrained(g) {
		t.Error("not drained by the last release")
	}
	g.drain(time.Hour, nil)
}

func TestRetireWithoutUsers(t *testing.T) {
	g := &generation{
		run: &pluginRunner{meter: &meter{}}, retiring: make(chan struct{}), drained: make(chan struct{}),
	}
	g.retire()
	if !isDrained(g) {
		t.Error("not drained")
	}
}

func TestDrainTimesOut(t *testing.T) {
	g := &generation{
		run: &pluginRunner{meter: &meter{}}, retiring: make(chan struct{}), drained: make(chan struct{}),
	}
	if _, ok := g.acquire(); !ok {
		t.Fatal("acquire failed")
	}
	g.retire()
	g.drain(time.Millisecond, nil)
	drop := make(chan struct{})
	close(drop)
	g.drain(time.Hour, drop)
}

func isDrained(g *generation) bool {
	select {
	case <-g.drained:
		return true
	default:
		return false
	}
}
