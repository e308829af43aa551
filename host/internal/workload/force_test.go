package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/test/lib/check"
)

var errStuck = errors.New("the driver cannot")

// forcedEvents are those of volumes that were unmounted by force.
func (h *host) forcedEvents() (all []events.Event) {
	for _, e := range h.Events.Recent(1000) {
		if e.Topic == events.TopicVolume && e.Type == "forced" {
			all = append(all, e)
		}
	}
	return all
}

// A driver fails to unmount, or never answers. A release that an operator forces does without it, also after a restart
// of the host, and says who forced it.
func TestForcedRelease(t *testing.T) {
	for name, stuck := range map[string]func(ctx context.Context) error{
		"it fails": func(context.Context) error { return errStuck },
		"it hangs": func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			h.on("unpublish:before", 0, stuck)
			h.on("unstage:before", 0, func(context.Context) error { return errStuck })
			h.start(t, spec("w", "a"))
			go func() { _, _ = h.Stop(context.Background(), ref("w"), "stopped", nil) }()
			h.eventually(t, "w", "stopping", func(w Workload) bool { return w.State == Stopping })
			check.NoError(t, h.Force(ref("w"), "root"))
			h.ended(t, "w")
			h.clean(t)
			got := h.forcedEvents()
			if len(got) != 2 || got[0].Details["by"] != "root" || !strings.Contains(got[1].Message, errStuck.Error()) {
				t.Errorf("the events are %+v", got)
			}
			if did := h.happened(); !slices.Contains(did, "detached w, forced by root") {
				t.Errorf("the ledger does not know who forced it: %q", did)
			}
		})
	}
}

// A forced release waits for what has the volume in use as any other, and continues under the next host.
func TestForcedReleaseOfABusyVolume(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	stuck := func(context.Context) error { return errStuck }
	h.on("unpublish:before", 0, stuck)
	w := h.start(t, spec("w", "a"))
	busy, err := os.Create(filepath.Join(w.Mounts[0].HostPath, "file"))
	check.NoError(t, err)
	defer busy.Close()
	check.NoError(t, h.Force(ref("w"), "root"))
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "stopped", nil) }()
	h.eventually(t, "w", "waiting for the file", func(w Workload) bool { return strings.Contains(w.Waiting, "busy") })
	if at(w.Mounts[0].HostPath) == nil || len(h.ledger.claims()) != 1 || len(h.forcedEvents()) > 0 {
		t.Error("a volume in use was unmounted, or its claim released")
	}
	h = h.restart(t)
	h.on("unpublish:before", 0, stuck)
	h.waiting(t, "w")
	check.NoError(t, busy.Close())
	h.ended(t, "w")
	h.clean(t)
	if got := h.forcedEvents(); len(got) != 1 || got[0].Details["by"] != "root" {
		t.Errorf("the events are %+v", got)
	}
}

// Without force a driver that fails is waited for.
func TestReleaseIsNotForced(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.on("unpublish:before", 1, func(context.Context) error { return errStuck })
	h.start(t, spec("w", "a"))
	h.stop(t, "w")
	if got := h.forcedEvents(); len(got) > 0 {
		t.Errorf("it was forced: %+v", got)
	}
	if err := h.Force(ref("w"), "root"); err != nil {
		t.Errorf("to force what has ended: %v", err)
	}
	if err := h.Force(ref("unknown"), "root"); !errors.Is(err, ErrNotFound) {
		t.Errorf("to force what is not there: %v", err)
	}
}
