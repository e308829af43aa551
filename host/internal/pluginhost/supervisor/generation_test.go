package supervisor

import (
	"context"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
)

// A generation is drained when its last user releases it, and cannot be acquired once it is retired.
func TestRetiredGenerationDrains(t *testing.T) {
	g := &generation{Process: &managed.Process{}, retiring: make(chan struct{}), drained: make(chan struct{})}
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
	g.drainedIn(t.Context(), time.Hour)
}

func TestRetireWithoutUsers(t *testing.T) {
	g := &generation{Process: &managed.Process{}, retiring: make(chan struct{}), drained: make(chan struct{})}
	g.retire()
	if !isDrained(g) {
		t.Error("not drained")
	}
}

func TestDrainTimesOut(t *testing.T) {
	g := &generation{Process: &managed.Process{}, retiring: make(chan struct{}), drained: make(chan struct{})}
	if _, ok := g.acquire(); !ok {
		t.Fatal("acquire failed")
	}
	g.retire()
	g.drainedIn(t.Context(), time.Millisecond)
	ended, end := context.WithCancel(t.Context())
	end()
	g.drainedIn(ended, time.Hour)
}

func isDrained(g *generation) bool {
	select {
	case <-g.drained:
		return true
	default:
		return false
	}
}
