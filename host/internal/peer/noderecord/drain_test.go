package noderecord

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// hand has the functions that a Drainer calls. It records the calls, and fails as often as a test wants.
type hand struct {
	mu    sync.Mutex
	did   []string
	fails map[string]int
	held  chan struct{} // Drain waits for it; nil: it does not
}

func (h *hand) do(what string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails[what] > 0 {
		h.fails[what]--
		return errors.New("the test wants it so")
	}
	h.did = append(h.did, what)
	return nil
}

func (h *hand) done() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.did)
}

func (h *hand) Drain(ctx context.Context, _ string) error {
	if h.held != nil {
		select {
		case <-h.held:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return h.do("stop workloads")
}

func (h *hand) Undrain()                              { _ = h.do("let workloads start") }
func (h *hand) Suspend(context.Context, string) error { return h.do("stop drivers") }
func (h *hand) Resume(context.Context) error          { return h.do("start drivers") }

// drained is a node with a Drainer, on a real ledger.
type drained struct {
	*hand
	t      *testing.T
	ledger *clustertest.Server
}

func drainerOf(t *testing.T, h *hand) drained {
	d := drained{hand: h, t: t, ledger: clustertest.Start(t)}
	_, err := cluster.Apply(t.Context(), d.ledger, &command.PutNode{Node: claim.Node{Name: "n"}})
	must(t, err)
	d.run()
	return d
}

// run runs a Drainer until the test ends, or the returned function is called.
func (d drained) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		(&Drainer{
			Name: "n", Ledger: d.ledger, Workloads: d.hand, Drivers: d.hand, Events: events.New(0),
			Log: hclog.NewNullLogger(),
		}).Run(ctx)
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	d.t.Cleanup(stop)
	return stop
}

func (d drained) duty(duty command.SetNodeDuty) {
	d.t.Helper()
	duty.Name = "n"
	_, err := cluster.Apply(d.t.Context(), d.ledger, &duty)
	must(d.t, err)
}

func (d drained) eventually(what string, is func() bool) {
	d.t.Helper()
	for late := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			d.t.Fatalf("it is not so: %s; it did %q", what, d.done())
		}
	}
}

// record reads the node's record.
func (d drained) isDone() bool {
	n, _, err := cluster.Ask(d.t.Context(), d.ledger, &command.QueryNode{Name: "n"}, command.Blocking{})
	must(d.t, err)
	return n.Drain != nil && !n.Drain.DoneAt.IsZero()
}

func (d drained) did(want ...string) {
	d.t.Helper()
	d.eventually("did what is wanted", func() bool { return slices.Equal(d.done(), want) })
}

// Workloads are stopped first, then drivers, and then the ledger records the end of the drain. Every call is
// retried.
func TestADrain(t *testing.T) {
	d := drainerOf(t, &hand{fails: map[string]int{"stop workloads": 1, "stop drivers": 1, "start drivers": 1}})
	d.duty(command.SetNodeDuty{Drain: &claim.Drain{By: "op"}})
	d.eventually("done", d.isDone)
	want := []string{"stop workloads", "stop workloads", "stop drivers"} // the second for the drivers
	d.did(want...)
	d.duty(command.SetNodeDuty{StopDrain: true})
	d.did(append(want, "start drivers", "let workloads start")...)
	d.duty(command.SetNodeDuty{Drain: &claim.Drain{By: "op"}})
	d.eventually("done again", d.isDone)
}

// A drain is cancelled before it is done.
func TestCancelledDrain(t *testing.T) {
	d := drainerOf(t, &hand{held: make(chan struct{})})
	d.duty(command.SetNodeDuty{Drain: &claim.Drain{By: "op"}})
	d.duty(command.SetNodeDuty{StopDrain: true})
	d.duty(command.SetNodeDuty{Drain: &claim.Drain{By: "another"}})
	close(d.held)
	d.eventually("the second one done", d.isDone)
	if got := d.done(); got[len(got)-1] != "stop drivers" {
		t.Errorf("it did %q", got)
	}
}

// The next process of the host continues a drain, and keeps what was drained.
func TestADrainOverARestart(t *testing.T) {
	h := &hand{held: make(chan struct{})}
	d := drained{hand: h, t: t, ledger: clustertest.Start(t)}
	_, err := cluster.Apply(t.Context(), d.ledger, &command.PutNode{Node: claim.Node{Name: "n"}})
	must(t, err)
	d.duty(command.SetNodeDuty{Drain: &claim.Drain{By: "op"}})
	stop := d.run()
	stop()
	d.did()
	close(h.held)
	stop = d.run()
	d.eventually("done", d.isDone)
	stop()
	d.run()
	d.did("stop workloads", "stop drivers", "stop workloads", "stop drivers")
	d.duty(command.SetNodeDuty{StopDrain: true})
	d.did("stop workloads", "stop drivers", "stop workloads", "stop drivers", "start drivers", "let workloads start")
}

// A node that is not in the ledger yet is drained as soon as it is.
func TestNodeIsDrainedOnceItIsRegistered(t *testing.T) {
	d := drained{hand: &hand{}, t: t, ledger: clustertest.Start(t)}
	d.run()
	_, err := cluster.Apply(t.Context(), d.ledger, &command.PutNode{Node: claim.Node{Name: "n"}})
	must(t, err)
	d.duty(command.SetNodeDuty{Drain: &claim.Drain{By: "op"}})
	d.eventually("done", d.isDone)
}
