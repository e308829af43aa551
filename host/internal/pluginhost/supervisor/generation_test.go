package supervisor

import (
	"testing"
	"time"
)

// A generation is drained when its last user releases it, and cannot be acquired once it is retired.
func TestRetiredGenerationDrains(t *testing.T) {
	g := &generation{retiring: make(chan struct{}), drained: make(chan struct{})}
	first, ok := g.acquire()
	if !ok {
		t.Fatal("no lease")
	}
	second, _ := g.acquire()
	if g.userCount() != 2 {
		t.Errorf("%d users, want 2", g.userCount())
	}
	g.retire()
	g.retire()
	if _, ok := g.acquire(); ok {
		t.Error("a lease of a retired generation")
	}
	first()
	first() // a second release of one lease is not one of the other
	if isDrained(g) {
		t.Error("drained, and one lease is still out")
	}
	second()
	if !isDrained(g) {
		t.Error("not drained by the last lease")
	}
	g.drain(time.Hour, nil)
}

func TestRetireWithoutUsers(t *testing.T) {
	g := &generation{retiring: make(chan struct{}), drained: make(chan struct{})}
	g.retire()
	if !isDrained(g) {
		t.Error("not drained")
	}
}

func TestDrainTimesOut(t *testing.T) {
	g := &generation{retiring: make(chan struct{}), drained: make(chan struct{})}
	if _, ok := g.acquire(); !ok {
		t.Fatal("no lease")
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
