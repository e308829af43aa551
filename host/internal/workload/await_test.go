package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// exclusive may be used by one workload at a time.
var exclusive = claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}

// nodes are the other nodes. stops records the workloads that they were asked to stop.
type nodes struct {
	mu    sync.Mutex
	fails int
	stops []string
	asked chan struct{}
}

func (n *nodes) StopWorkload(_ context.Context, node string, ref claim.WorkloadRef, reason string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails > 0 {
		n.fails--
		return fmt.Errorf("node %q cannot be reached", node)
	}
	n.stops = append(n.stops, fmt.Sprintf("%s on %s: %s", ref, node, reason))
	close(n.asked)
	return nil
}

// waitsFor waits until the workload waits for exactly these.
func (h *host) waitsFor(t *testing.T, id string, others ...string) Workload {
	t.Helper()
	return h.eventually(t, id, fmt.Sprint("waiting for ", others), func(w Workload) bool {
		var got []string
		for _, r := range w.WaitsFor {
			got = append(got, r.ID)
		}
		return w.State == Starting && slices.Equal(got, others)
	})
}

// begins starts a workload and does not wait until it runs.
func (h *host) begins(t *testing.T, s Spec) (started chan error) {
	t.Helper()
	started = make(chan error, 1)
	go func() {
		_, err := h.Start(context.Background(), s, Options{})
		started <- err
	}()
	for late := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		if _, err := h.Get(s.WorkloadRef); err == nil {
			return started
		}
		if time.Now().After(late) {
			t.Fatalf("the start of %s does not begin", s.ID)
		}
	}
}

func refs(ids ...string) (all []claim.WorkloadRef) {
	for _, id := range ids {
		all = append(all, ref(id))
	}
	return all
}

// A workload takes nothing before all that it comes after are gone, with their claims; then it continues.
func TestStartAfterOthers(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a", exclusive)
	h.start(t, spec("one", "a"))
	h.start(t, spec("two"))
	s := spec("three", "a")
	s.After = refs("one", "two", "unknown")
	started := h.begins(t, s)
	w := h.waitsFor(t, "three", "one", "two")
	if w.WaitsSince.IsZero() || !strings.Contains(w.Waiting, `"one", "two"`) || len(w.Steps) != 1 ||
		w.Steps[0].Name != "await" || w.Steps[0].Note != w.Waiting {
		t.Errorf("it does not tell for whom it waits: %+v", w)
	}
	h.stop(t, "two")
	h.waitsFor(t, "three", "one")
	held := newGate()
	h.on("unpublish:before a", 1, held.hold)
	stopped := make(chan struct{})
	go func() { defer close(stopped); _, _ = h.Stop(context.Background(), ref("one"), "enough", nil) }()
	held.await(t) // it has ended, and its claim stands
	if h.count("claim three") > 0 {
		t.Error("it did not wait for the claims of the other")
	}
	close(held.open)
	awaitClosed(t, stopped, "the stop of the other")
	check.NoError(t, <-started)
	if w := h.running(t, "three"); len(w.WaitsFor) > 0 || w.Waiting != "" {
		t.Errorf("it waits still: %+v", w)
	}
	h.stop(t, "three")
	h.clean(t)
	h.nothingWaits(t)
}

// nothingWaits checks that no workload waits or runs according to the ledger.
func (h *host) nothingWaits(t *testing.T) {
	t.Helper()
	on, err := cluster.OnNode(t.Context(), h.ledger, here)
	if err != nil || len(on.Workloads) > 0 {
		t.Errorf("the ledger still has %+v (%v)", on, err)
	}
}

// A workload with services and no volumes waits too, and a stop ends the wait cleanly.
func TestStopEndsTheWait(t *testing.T) {
	h := newHost(t)
	h.start(t, spec("one"))
	s := withServices(spec("two"), sidecar("two"))
	s.After = refs("one")
	started := h.begins(t, s)
	h.waitsFor(t, "two", "one")
	h.stop(t, "two")
	if err := <-started; !errors.Is(err, ErrFailed) ||
		!strings.Contains(err.Error(), "the start was given up: the test stops it") {
		t.Errorf("the start says %v", err)
	}
	if h.count("claim two") > 0 {
		t.Errorf("it went on: %v", h.happened())
	}
	h.stop(t, "one")
	h.nothingWaits(t)
	h.clean(t)
}

func TestReplace(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a", exclusive)
	h.start(t, spec("old", "a"))
	s := spec("new", "a")
	s.Replaces = refs("old")
	h.start(t, s)
	// The new one starts when nothing is left of the old one, which may not have noted yet that this was all.
	if w := h.ended(t, "old"); w.State != Stopped || w.Message != `replaced by workload "new" on node "here"` {
		t.Errorf("%s: %s", w.State, w.Message)
	}
	h.stop(t, "new")
	h.clean(t)
}

// The other workload is on another node, which is asked until the request has arrived, once.
func TestReplaceOnAnotherNode(t *testing.T) {
	h := prepareHost(t, newDir(t))
	others := &nodes{fails: 2, asked: make(chan struct{})}
	h.Nodes = others
	h.open(t)
	old := ref("old")
	_, err := cluster.Apply(t.Context(), h.ledger.node, command.Start(claim.Run{Ref: old, Node: "there"}, nil))
	check.NoError(t, err)
	s := spec("new")
	s.Replaces = refs("old")
	started := h.begins(t, s)
	awaitClosed(t, others.asked, "the other node to be asked")
	h.waitsFor(t, "new", "old")
	_, err = cluster.Apply(t.Context(), h.ledger.node, command.End(claim.Run{Ref: old, Node: "there"}))
	check.NoError(t, err)
	check.NoError(t, <-started)
	if want := []string{`old on there: replaced by workload "new" on node "here"`}; !slices.Equal(others.stops, want) {
		t.Errorf("asked %q, want %q", others.stops, want)
	}
	h.stop(t, "new")
	h.clean(t)
}

// While the ledger cannot be reached the wait continues.
func TestTheLedgerIsAwayWhileItWaits(t *testing.T) {
	h := newHost(t)
	h.start(t, spec("one"))
	for n := 1; n <= 3; n++ {
		h.on("others:before", n, fail(codes.Unavailable))
	}
	s := spec("two")
	s.After = refs("one")
	started := h.begins(t, s)
	h.waitsFor(t, "two", "one")
	h.stop(t, "one")
	check.NoError(t, <-started)
	h.stop(t, "two")
	h.clean(t)
}

// The next process of the host continues the wait, even if it cannot reach the ledger at first.
func TestARestartWhileItWaits(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a", exclusive)
	h.start(t, spec("one", "a"))
	s := spec("two", "a")
	s.After = refs("one")
	h.begins(t, s)
	since := h.waitsFor(t, "two", "one").WaitsSince
	h = h.next(t)
	h.on("await:before", 1, fail(codes.Unavailable))
	h.open(t)
	if w := h.waitsFor(t, "two", "one"); !w.WaitsSince.Equal(since) {
		t.Errorf("it waits since %s, not %s", w.WaitsSince, since)
	}
	h.stop(t, "one")
	h.running(t, "two")
	h = h.restart(t) // the one that it came after may run again
	h.start(t, spec("one"))
	h.running(t, "two")
	h.stop(t, "two")
	h.stop(t, "one")
	h.clean(t)
}

func TestARefusedWaitTouchesNothing(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.on("await:before", 1, func(context.Context) error {
		return fmt.Errorf("w waits for v waits for w: %w",
			claim.ErrCycle)
	})
	s := spec("w", "a")
	s.After = refs("v")
	if _, err := h.Start(t.Context(), s, Options{}); !errors.Is(err, claim.ErrCycle) || !errors.Is(err, ErrFailed) ||
		!strings.Contains(err.Error(), "w waits for v waits for w") {
		t.Fatal(err)
	}
	if got := h.happened(); len(got) > 0 {
		t.Errorf("calls were made: %v", got)
	}
	h.clean(t)
}
