package workload

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/process"
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

// meshed starts a workload with a service and a process, which a stop keeps from its end for as long as it is told to.
func (h *host) meshed(t *testing.T, script string, change func(*Spec)) program {
	t.Helper()
	s := withServices(spec("w"), native("web"))
	s.ShutdownDelay = "1h"
	if change != nil {
		change(&s)
	}
	h.start(t, s)
	p := runScript(t, true, script)
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	return p
}

// registered reports whether Consul has the service.
func (h *host) registered() bool { return len(h.consul.services()) > 0 }

// A stop takes the services out of the catalog, and then gives their callers time: the process lives on. A second stop
// ends that.
func TestAStopLeavesTheCatalogFirst(t *testing.T) {
	h := newHost(t)
	p := h.meshed(t, idle, nil)
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "enough", nil) }()
	check.Eventually(t, "it has left", func() bool { return !h.registered() })
	h.eventually(t, "w", "the step", func(w Workload) bool {
		return slices.ContainsFunc(w.Steps, func(s Step) bool {
			return s.Name == leaveStep && s.Undo && s.State == StepRunning
		})
	})
	if !p.alive() || len(h.consul.tokens()) != 1 {
		t.Error("its process has ended, or its token")
	}
	h.stop(t, "w")
	if p.alive() {
		t.Error("its process lives")
	}
	h.clean(t)
}

// Nobody waits for the callers of what has ended, of a node that was cut off, or of a release that is forced.
func TestWhatDoesNotLeaveFirst(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, h *host, p program){
		"it ends": func(t *testing.T, _ *host, p program) { p.kill(t) },
		"cut off": func(t *testing.T, h *host, _ program) { h.fence.end(); h.loses(t, "cut off") },
		"forced": func(t *testing.T, h *host, _ program) {
			check.NoError(t, h.Force(ref("w"), "root"))
			h.stop(t, "w")
		},
		"Consul is away": func(t *testing.T, h *host, _ program) {
			h.on("deregister:before", 1, func(context.Context) error { return errors.New("away") })
			h.stop(t, "w")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			p := h.meshed(t, idle, func(s *Spec) { s.Volumes = spec("w", "a").Volumes })
			end(t, h, p)
			h.ended(t, "w")
			h.clean(t)
		})
	}
}

// A node that is cut off waits neither for Consul nor for callers.
func TestCutOffWhileItLeaves(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.meshed(t, idle, func(s *Spec) { s.Volumes = spec("w", "a").Volumes })
	asked, answered := make(chan struct{}), make(chan error, 1)
	h.on("deregister:before", 1, func(ctx context.Context) error { // Consul hangs
		close(asked)
		<-ctx.Done()
		answered <- ctx.Err()
		return ctx.Err()
	})
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "enough", nil) }()
	<-asked
	h.fence.end()
	h.loses(t, "cut off")
	h.ended(t, "w")
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("Consul was waited for: %v", err)
	}
	h.clean(t)
}

// What has left the catalog runs on, also after a restart of the host, and the next start registers it again.
func TestLeave(t *testing.T) {
	h := newHost(t)
	var spec Spec
	p := h.meshed(t, idle, func(s *Spec) { s.ShutdownDelay = "10ms"; spec = *s })
	var back atomic.Bool
	h.on("deregister:before", 0, func(context.Context) error {
		if back.Load() {
			return nil
		}
		return errors.New("away")
	})
	if err := h.Leave(t.Context(), ref("w")); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("Consul is away: %v", err)
	}
	back.Store(true)
	check.Eventually(t, "it is tried again", func() bool { return !h.registered() })
	began := time.Now()
	check.NoError(t, h.Leave(t.Context(), ref("w")))
	if w, _ := h.Get(ref("w")); w.State != Running || !strings.Contains(w.Services[0].Message, "has left") {
		t.Errorf("%+v, after %s", w, time.Since(began))
	}
	h = h.restart(t)
	h.eventually(t, "w", "running", func(w Workload) bool { return w.State == Running })
	check.NoError(t, h.Leave(t.Context(), ref("w")))
	if !p.alive() || h.registered() || len(h.Registered.Instances()) > 0 {
		t.Error("it is registered again, or its process has ended")
	}
	if w := h.start(t, spec); !h.registered() || w.Services[0].Message != "" {
		t.Errorf("after the next start: %+v", w.Services)
	}
	h.stop(t, "w")
	check.NoError(t, h.Leave(t.Context(), ref("w")))
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
