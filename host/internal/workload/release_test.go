package workload

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/system/events"
)

// A release that has to wait is reported at its first failed try, and then at growing distances; its status always
// says how often it failed, since when, why, and when the next try is.
func TestAReleaseThatWaitsIsSeen(t *testing.T) {
	h := newHost(t)
	const failing = 9
	h.limits.undo.Min, h.limits.undo.Max = time.Millisecond, time.Millisecond
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	for n := 1; n <= failing; n++ {
		h.on("unpublish:before", n, fail(codes.Unavailable))
	}
	held := newGate()
	h.on("unpublish:before", failing+1, held.hold)
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
	held.await(t)

	w, err := h.Get(ref("w"))
	if err != nil {
		t.Fatal(err)
	}
	r := w.Release
	if r.Tries != failing || r.Error != w.Waiting || !strings.Contains(r.Error, "the test wants it so") ||
		r.Since.IsZero() || !r.NextAt.IsZero() {
		t.Errorf("during try %d the release is %+v", failing+1, r)
	}
	if n := h.FailedTries(); n != failing {
		t.Errorf("%d tries have failed, want %d", n, failing)
	}
	close(held.open)
	h.ended(t, "w")
	var tries []string
	for _, e := range h.Events.Recent(events.DefaultSize) {
		if e.Type == "release-waits" && e.Subject == "w" && strings.Contains(e.Message, "the test wants it so") {
			tries = append(tries, e.Details["tries"])
		}
	}
	if !slices.Equal(tries, []string{"1", "2", "4", "8"}) {
		t.Errorf("events tell of the tries %v", tries)
	}
	if w, err := h.Get(ref("w")); err != nil || w.Release != (Release{}) {
		t.Errorf("once it is released, it is %+v (%v)", w.Release, err)
	}
	h.clean(t)
}
