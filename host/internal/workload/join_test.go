package workload

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/test/lib/check"
)

// steps collects the progress of a start or a stop.
type collected struct {
	mu   sync.Mutex
	seen []string
}

func (c *collected) progress(s Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, strings.TrimSpace(s.Name+" "+s.Volume)+" "+string(s.State))
}

func TestTwoStartsAreOneRun(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	held := newGate()
	h.on("stage:before", 1, held.hold)
	var first, second collected
	var wg sync.WaitGroup
	start := func(c *collected) {
		wg.Go(func() {
			w, err := h.Start(t.Context(), spec("w", "a"), Options{Progress: c.progress})
			if err != nil || w.State != Running {
				t.Errorf("%s, %v", w.State, err)
			}
		})
	}
	start(&first)
	held.await(t)
	start(&second)
	other := spec("w", "a")
	other.Volumes[0].ReadOnly = true
	if _, err := h.Start(t.Context(), other, Options{}); !errors.Is(err, ErrConflict) ||
		!strings.Contains(err.Error(), "pannier workload stop w") {
		t.Errorf("another specification: %v", err)
	}
	if _, err := h.Start(t.Context(), spec("w", "a"), Options{Owner: refOf(1)}); !errors.Is(err, ErrConflict) {
		t.Errorf("another owner: %v", err)
	}
	close(held.open)
	wg.Wait()
	for name, c := range map[string]*collected{"first": &first, "second": &second} {
		for _, want := range []string{"claim done", "attach a done", "stage a done", "publish a done"} {
			if !slices.Contains(c.seen, want) {
				t.Errorf("the %s was not told %q: %q", name, want, c.seen)
			}
		}
	}
	for _, call := range []string{"claim w", "attach a", "stage a", "publish a"} {
		if n := h.count(call); n != 1 {
			t.Errorf("%q happened %d times", call, n)
		}
	}
	h.stop(t, "w")
	h.clean(t)
}

func TestAStartWaitsForAnEarlierRelease(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	held := newGate()
	h.on("unstage:before", 1, held.hold)
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
	held.await(t)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := h.Start(ctx, spec("w", "a"), Options{}); !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), `earlier run of workload "w" is still being released`) {
		t.Errorf("a start that does not wait: %v", err)
	}
	started := make(chan error, 1)
	go func() {
		_, err := h.Start(context.Background(), spec("w", "a"), Options{})
		started <- err
	}()
	close(held.open)
	check.NoError(t, <-started)
	inOrder(t, h.happened(), "claim w", "unstage a", "detached w", "freed w", "claim w", "publish a")
	h.stop(t, "w")
	h.clean(t)
}

// The journal is still being written that the run is to stop: a start does not join it.
func TestAStartRightAfterAStopIsAnotherRun(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	i, err := h.known.find(ref("w"))
	check.NoError(t, err)
	i.askStop("the test stops it")
	h.start(t, spec("w", "a"))
	inOrder(t, h.happened(), "publish a", "unpublish a", "freed w", "claim w", "publish a")
	h.stop(t, "w")
	h.clean(t)
}

func TestAStopGivesAStartUp(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	held := newGate()
	h.on("attach:before", 1, held.hold)
	started := make(chan error, 1)
	go func() {
		_, err := h.Start(context.Background(), spec("w", "a"), Options{})
		started <- err
	}()
	held.await(t)
	var told collected
	w, err := h.Stop(t.Context(), ref("w"), "changed my mind", told.progress)
	if err != nil || w.State != Failed {
		t.Errorf("%s, %v", w.State, err)
	}
	if err := <-started; !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "given up: changed my mind") {
		t.Errorf("the start says %v", err)
	}
	if slices.Contains(told.seen, "claim failed") || !slices.Contains(told.seen, "claim done") ||
		!slices.Contains(told.seen, "attach a done") {
		t.Errorf("the stop was told of %q, want what it undid", told.seen)
	}
	h.clean(t)
}

// A caller may stop waiting for a start, which continues.
func TestAStartIsLeft(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	held := newGate()
	h.on("stage:before", 1, held.hold)
	ctx, leave := context.WithCancel(t.Context())
	go func() { held.await(t); leave() }()
	if _, err := h.Start(ctx, spec("w", "a"), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(held.open)
	h.running(t, "w")
	h.stop(t, "w")
	h.clean(t)
}

func TestAttemptsAndErrorsOfStepsAreTold(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	for n := 1; n <= 2; n++ {
		h.on("unpublish:before", n, fail(codes.Internal))
	}
	var told collected
	w, err := h.Stop(t.Context(), ref("w"), "the test stops it", told.progress)
	check.NoError(t, err)
	// A caller who is slow misses states between two that it sees.
	if !slices.ContainsFunc(told.seen, func(s string) bool { return strings.HasSuffix(s, " waiting") }) {
		t.Errorf("told: %q", told.seen)
	}
	for _, s := range w.Steps {
		if s.Undo && s.Name == "publish" && (s.Attempt != 3 || s.State != StepDone || s.Error != "") {
			t.Errorf("step: %+v", s)
		}
	}
	h.clean(t)
}

func TestStopOfWhatIsNotThere(t *testing.T) {
	h := newHost(t)
	if _, err := h.Stop(t.Context(), ref("w"), "", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	h.start(t, spec("w"))
	h.stop(t, "w")
	h.stop(t, "w") // what has ended: success
}

func TestAClosedManager(t *testing.T) {
	h, p := newHost(t), runScript(t, false, idle)
	h.start(t, spec("w"))
	h.shut(t)
	h.shut(t)
	if _, err := h.Start(t.Context(), spec("x"), Options{}); !errors.Is(err, ErrClosed) {
		t.Errorf("start: %v", err)
	}
	if _, err := h.Stop(t.Context(), ref("w"), "", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("stop: %v", err)
	}
	if err := h.Running(ref("w"), p.pid(), process.Ref{}); !errors.Is(err, ErrClosed) {
		t.Errorf("running: %v", err)
	}
}

func TestStopAllWaitsForWhatItCan(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.volume(t, staged, "b")
	h.start(t, spec("ends", "a"))
	h.start(t, spec("hangs", "b"))
	held := newGate()
	h.on("unstage:before b", 1, held.hold)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := h.StopAll(ctx, "the host goes"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	h.ended(t, "ends")
	close(held.open)
	check.NoError(t, h.StopAll(t.Context(), "the host goes"))
	if w := h.ended(t, "hangs"); w.Message != "the host goes" {
		t.Errorf("it says %q", w.Message)
	}
	h.clean(t)
}
