package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/test/lib/check"
)

// ledgerAway makes all of the ledger hang, until the test opens the gate.
func (h *host) ledgerAway() (back func()) {
	g := newGate()
	for _, kind := range []string{"claim", "end", "detached", "freed", "await", "others", "onnode"} {
		h.on(kind+":before", 0, g.hold)
	}
	return func() { close(g.open) }
}

// loses calls LoseLease with the test's timeout.
func (h *host) loses(t *testing.T, reason string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	check.NoError(t, h.LoseLease(ctx, reason))
}

// A node that is cut off has nothing mounted when LoseLease returns, whatever its processes and the ledger do; the
// limits for both are as long as the test's timeout here. Workloads without volumes continue.
func TestNodeIsCutOff(t *testing.T) {
	const reason = "the node was cut off from the servers for 1m0s"
	h, private := newHost(t), runScript(t, true, stubborn)
	h.limits.stopGrace, h.limits.ledger = time.Hour, time.Hour
	h.impatient()
	h.volume(t, full, "a")
	h.volume(t, staged, "b")
	w := h.start(t, spec("w", "a", "b"))
	check.NoError(t, h.Running(ref("w"), private.pid(), process.Ref{}))
	h.start(t, spec("nothing"))
	s := spec("patient", "a")
	s.After = refs("nothing")
	h.begins(t, s)
	h.waitsFor(t, "patient", "nothing")
	starting := newGate()
	h.on("publish:before", 1, starting.hold)
	started := h.begins(t, spec("starting", "b"))
	starting.await(t)

	back := h.ledgerAway()
	h.fence.end()
	h.loses(t, reason)
	for _, m := range w.Mounts {
		if at(m.HostPath) != nil {
			t.Errorf("%s is mounted still", m.HostPath)
		}
	}
	if private.alive() {
		t.Error("its process lives")
	}
	if w, err := h.Get(ref("nothing")); err != nil || w.State != Running {
		t.Errorf("what has no volumes is %s (%v)", w.State, err)
	}
	if len(h.ledger.claims()) == 0 {
		t.Error("claims were released without the ledger")
	}
	back()
	for _, id := range []string{"w", "starting"} {
		if w := h.ended(t, id); w.State != Failed || !strings.Contains(w.Message, reason) {
			t.Errorf("%s is %s: %s", id, w.State, w.Message)
		}
	}
	if err := <-started; !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), reason) {
		t.Errorf("the start says %v", err)
	}
	failed := 0
	for _, e := range h.bus.Recent(100) {
		if e.Topic == events.TopicWorkload && e.Type == "failed" {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("%d failures were told of, want 2", failed)
	}
	h.waitsFor(t, "patient", "nothing") // it has nothing to lose
	h.fence.renew()
	h.stop(t, "nothing")
	h.running(t, "patient")
	h.stop(t, "patient")
	h.clean(t)
}

// A start that has asked for its claims, and has no answer yet, is stopped with those that have theirs: the answer may
// come under the next lease, and would be of the one before.
func TestClaimIsInFlightAtTheLossOfTheLease(t *testing.T) {
	for _, where := range []string{"before", "after"} {
		t.Run(where, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			held := newGate()
			h.on("claim:"+where, 1, held.hold)
			started := h.begins(t, spec("w", "a"))
			held.await(t)
			h.fence.end()
			h.loses(t, "cut off")
			h.fence.renew()
			close(held.open)
			if err := <-started; !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "cut off") {
				t.Fatalf("the start says %v", err)
			}
			if w := h.ended(t, "w"); w.State != Failed || !strings.Contains(w.Message, "cut off") || h.count("publish a") > 0 {
				t.Errorf("%s: %s, %v", w.State, w.Message, h.happened())
			}
			h.clean(t)
		})
	}
}

// A workload without claims has nothing that another node could have: it runs on.
func TestWithoutClaimsNothingIsLost(t *testing.T) {
	h := newHost(t)
	h.start(t, spec("w"))
	h.fence.end()
	h.loses(t, "cut off")
	if w, err := h.Get(ref("w")); err != nil || w.State != Running {
		t.Fatalf("it is %s (%v)", w.State, err)
	}
	h.stop(t, "w")
	h.clean(t)
}

// A stop that gives a process time to end gives it none once the node is cut off.
func TestANodeIsCutOffInTheMiddleOfAStop(t *testing.T) {
	h, p := newHost(t), runScript(t, false, stubborn)
	h.limits.stopGrace = time.Hour
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "enough", nil) }()
	h.eventually(t, "w", "stopping", func(w Workload) bool { return w.State == Stopping })
	h.loses(t, "cut off")
	if w := h.ended(t, "w"); w.State != Stopped || w.Message != "enough" {
		t.Errorf("%s: %s", w.State, w.Message)
	}
	h.clean(t)
}

// The error says what cannot be unmounted.
func TestLoseLeaseSaysWhatIsLeft(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	w := h.start(t, spec("w", "a"))
	h.drivers.healthy(full, false)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { h.waiting(t, "w"); cancel() }()
	if err := h.LoseLease(ctx, "cut off"); err == nil ||
		!strings.Contains(err.Error(), `workload "w" is not unmounted yet`) {
		t.Errorf("it says %v", err)
	}
	if at(w.Mounts[0].HostPath) == nil {
		t.Error("it is not mounted")
	}
	h.drivers.healthy(full, true)
	h.ended(t, "w")
	h.clean(t)
}

// A node that comes back learns which claims it has lost. The claims of others stay untouched, and intact workloads
// continue.
func TestANodeComesBack(t *testing.T) {
	for name, c := range map[string]struct{ to string }{"its claims are free": {}, "its claims are another's": {"there"}} {
		for _, how := range []string{"at once", "after a restart"} {
			t.Run(name+" "+how, func(t *testing.T) {
				h := newHost(t)
				h.volume(t, full, "a", exclusive)
				h.volume(t, full, "b")
				lost := h.start(t, spec("w", "a")).Mounts[0].HostPath
				kept := h.start(t, spec("kept", "b")).Mounts[0].HostPath
				check.NoError(t, h.ledger.takeAway("w", c.to))
				_, err := cluster.Apply(t.Context(), h.ledger.node,
					command.Start(claim.Run{Ref: ref("unknown"), Node: here}, nil))
				check.NoError(t, err)
				if how == "at once" {
					check.NoError(t, h.Reconciler.Reconcile(t.Context()))
				} else {
					h = h.restart(t)
				}
				w := h.ended(t, "w")
				if w.State != Failed || !strings.Contains(w.Message, "released its claims on [a]") || at(lost) != nil {
					t.Errorf("%s: %s; mounted: %v", w.State, w.Message, at(lost))
				}
				if w, err := h.Get(ref("kept")); err != nil || w.State != Running || at(kept) == nil {
					t.Errorf("what was intact is %s, %v", w.State, err)
				}
				if u, err := h.ledger.workload(ref("unknown")); err != nil || u.Status != claim.Ended {
					t.Errorf("what nobody knows is %+v, %v", u, err)
				}
				h.stop(t, "kept")
				h.elsewhere(t, "there", c.to != "")
			})
		}
	}
}

// A start that an earlier process of the host began gets new claims: what was mounted under the old ones is unmounted.
func TestStartContinuesWithNewClaims(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	held := newGate()
	h.on("publish:before", 1, held.hold)
	h.begins(t, spec("w", "a"))
	held.await(t)
	h = h.next(t)
	h.on("onnode:before", 1, func(context.Context) error { return nil })
	check.NoError(t, h.ledger.takeAway("w", ""))
	h.open(t)
	if w := h.ended(t, "w"); w.State != Failed || h.count("publish a") > 0 {
		t.Errorf("%s: %s, %v", w.State, w.Message, h.happened())
	}
	h.clean(t)
}

// If the fence has acted on a workload that nobody was watching, that is why it failed, even though its claims stand.
func TestTheFenceHasActed(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.volume(t, full, "b")
	target := h.start(t, spec("w", "a")).Mounts[0].HostPath
	h.start(t, spec("kept", "b"))
	h = h.next(t)
	check.NoError(t, unix.Unmount(target, 0))
	h.Reconciler.fenced = func(r claim.WorkloadRef, since boottime.Instant) string {
		if r == ref("w") && since > 0 && since < boottime.Now() {
			return "the fence killed 1 process"
		}
		return ""
	}
	h.open(t)
	if w := h.ended(t, "w"); w.State != Failed || w.Message != "the fence killed 1 process" || h.count("publish a") > 0 {
		t.Errorf("%s: %s, %v", w.State, w.Message, h.happened())
	}
	h.running(t, "kept")
	h.stop(t, "kept")
	h.clean(t)
}

// A host that starts while its servers are away comes up, leaves its workloads alone, and continues when the ledger
// can be reached.
func TestTheLedgerIsAwayAtTheStart(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.volume(t, full, "b")
	target := h.start(t, spec("w", "a")).Mounts[0].HostPath
	h.start(t, spec("v", "b"))
	held := newGate()
	h.on("publish:before", 1, held.hold)
	h.begins(t, spec("starting", "b"))
	held.await(t)
	check.NoError(t, os.WriteFile(filepath.Join(target, "file"), nil, 0o600))

	h = h.next(t)
	h.RemoteLedger, h.limits.ledger = true, 300*time.Millisecond
	var went atomic.Bool
	h.on("claim:before", 0, func(context.Context) error { went.Store(true); return nil })
	back := h.ledgerAway()
	h.open(t)
	for _, w := range h.List() {
		if w.State != Unknown {
			t.Errorf("%s is %s", w.Spec.ID, w.State)
		}
	}
	if _, err := h.Start(t.Context(), spec("new"), Options{}); !errors.Is(err, ErrNotReconciled) {
		t.Errorf("a start says %v", err)
	}
	joined := make(chan error, 1)
	go func() { _, err := h.Start(context.Background(), spec("w", "a"), Options{}); joined <- err }()
	if got := h.happened(); len(got) > 0 {
		t.Errorf("calls were made: %v", got)
	}
	if _, err := os.Stat(filepath.Join(target, "file")); err != nil {
		t.Error(err)
	}
	go func() { _, _ = h.Stop(context.Background(), ref("v"), "the test stops it", nil) }()
	h.eventually(t, "v", "stopping", func(w Workload) bool { return w.State == Stopping })
	if went.Load() {
		t.Error("a start went on")
	}
	back()
	check.NoError(t, <-joined)
	h.running(t, "w")
	h.running(t, "starting")
	h.ended(t, "v")
	if h.count("publish a") > 0 {
		t.Error("it was mounted again")
	}
	h.start(t, spec("new"))
	for _, id := range []string{"w", "starting", "new"} {
		h.stop(t, id)
	}
	h.clean(t)
}

// The lease may end before the ledger was reached.
func TestTheLeaseRunsOutBeforeTheLedgerIsReached(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	target := h.start(t, spec("w", "a")).Mounts[0].HostPath
	h = h.next(t)
	h.RemoteLedger, h.limits.ledger = true, 300*time.Millisecond
	back := h.ledgerAway()
	h.open(t)
	h.loses(t, "cut off")
	if at(target) != nil {
		t.Error("it is mounted still")
	}
	back()
	if w := h.ended(t, "w"); w.State != Failed || w.Message != "cut off" {
		t.Errorf("%s: %s", w.State, w.Message)
	}
	h.clean(t)
}

// A standalone host does not start without its ledger.
func TestTheLedgerFailsAtTheStart(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	h = h.next(t)
	h.on("onnode:before", 1, fail(codes.Internal))
	if _, err := h.Open(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "read this node's workloads in the ledger") {
		t.Errorf("it says %v", err)
	}
	h = h.restart(t)
	h.running(t, "w")
	h.stop(t, "w")
	h.clean(t)
}
