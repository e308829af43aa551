package workload

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/test/lib/check"
)

// Drain stops one workload after the other, the last one first, including those that wait. One that cannot be released
// does not hold up the others, and is waited for.
func TestDrain(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.volume(t, staged, "b")
	h.volume(t, plain, "c")
	h.start(t, spec("one", "a"))
	h.start(t, spec("two", "b"))
	h.start(t, spec("three", "c"))
	s := spec("waiting")
	s.After = refs("one")
	waited := h.begins(t, s)
	h.waitsFor(t, "waiting", "one")
	h.drivers.healthy(staged, false)

	drained := make(chan error, 1)
	go func() { drained <- h.Drain(context.Background(), "the node is drained") }()
	h.ended(t, "one")
	h.waiting(t, "two")
	select {
	case err := <-drained:
		t.Fatalf("it is over, with a workload left: %v", err)
	default:
	}
	if _, err := h.Start(t.Context(), spec("new"), Options{}); !errors.Is(err, claim.ErrIneligible) ||
		!strings.Contains(err.Error(), "the node is drained") {
		t.Errorf("a start says %v", err)
	}
	h.drivers.healthy(staged, true)
	check.NoError(t, <-drained)
	if err := <-waited; !errors.Is(err, ErrFailed) {
		t.Errorf("what waited says %v", err)
	}
	order := slices.DeleteFunc(h.happened(), func(s string) bool { return !strings.HasPrefix(s, "end ") })
	order = slices.Compact(order) // each attempt says it again
	if n := slices.Index(order, "end one"); n < 0 ||
		!slices.Equal(order[:n+1], []string{"end waiting", "end three", "end two", "end one"}) {
		t.Errorf("they ended in the order %q", order)
	}
	if w, err := h.Get(ref("two")); err != nil || w.State != Stopped || w.Message != "the node is drained" {
		t.Errorf("%s: %s, %v", w.State, w.Message, err)
	}
	h.clean(t)
	h.Undrain()
	h.start(t, spec("one", "a"))
	h.stop(t, "one")
	h.clean(t)
}

func TestADrainIsLeft(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	h.drivers.healthy(full, false)
	ctx, leave := context.WithCancel(t.Context())
	go func() { h.waiting(t, "w"); leave() }()
	if err := h.Drain(ctx, "drained"); !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), `workload "w"`) {
		t.Errorf("it says %v", err)
	}
	h.drivers.healthy(full, true)
	h.ended(t, "w")
	h.clean(t)
}
