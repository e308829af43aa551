package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/clustertest"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/fencing/lease"
)

// quick terms run out in a test, and quietTerms do not.
var (
	quick      = claim.Liveness{HeartbeatTTL: 400 * time.Millisecond, StopAfter: 600 * time.Millisecond, Margin: 2 * time.Second}
	quietTerms = claim.Liveness{HeartbeatTTL: time.Hour, StopAfter: time.Hour, Margin: 10 * time.Hour}
)

// told is a ledger that notes when statuses were set, and fails as it is told to.
type told struct {
	*clustertest.Server
	mu   sync.Mutex
	sets []statusSet
	fail error // of a node that goes down
}

type statusSet struct {
	node   string
	status claim.NodeStatus
	at     time.Time
}

func (l *told) SetNodeStatus(ctx context.Context, name string, status claim.NodeStatus, by string) (command.SetNodeStatusResult, error) {
	l.mu.Lock()
	l.sets = append(l.sets, statusSet{name, status, time.Now()})
	err := l.fail
	l.mu.Unlock()
	if err != nil && status == claim.NodeDown {
		return command.SetNodeStatusResult{}, err
	}
	return l.Server.SetNodeStatus(ctx, name, status, by)
}

// first is the first time that a node got a status.
func (l *told) first(node string, status claim.NodeStatus) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.sets, func(s statusSet) bool { return s.node == node && s.status == status })
	if i < 0 {
		return time.Time{}, false
	}
	return l.sets[i].at, true
}

func (l *told) status(t *testing.T, name string) claim.NodeStatus {
	t.Helper()
	var n claim.Node
	if err := l.Read(t.Context(), func(tx *state.ReadTx) (err error) {
		n, err = tx.Node(name)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n.Status
}

func (l *told) liveness(t *testing.T) (now claim.Liveness) {
	t.Helper()
	if err := l.Read(t.Context(), func(tx *state.ReadTx) (err error) {
		now, _, err = tx.Liveness()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return now
}

func (l *told) put(t *testing.T, name string) {
	t.Helper()
	if _, err := l.PutNode(t.Context(), claim.Node{Name: name, BootID: "boot"}); err != nil {
		t.Fatal(err)
	}
}

// lead runs heartbeats on a ledger until the test ends, or stop is called.
func lead(t *testing.T, l *told, terms claim.Liveness) (h *Heartbeats, stop func()) {
	t.Helper()
	h = &Heartbeats{Cluster: l, Terms: terms, Log: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { h.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); run.Wait() })
	t.Cleanup(stop)
	await(t, "heartbeats to be answered", func() bool {
		_, _, err := h.before("")
		return err == nil
	})
	return h, stop
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

func TestNodesThatAreNotHeardFrom(t *testing.T) {
	l := &told{Server: clustertest.Start(t)}
	l.put(t, "a")
	h, _ := lead(t, l, quick)
	before := time.Now()
	a, err := h.Heard(t.Context(), "a", 1)
	if err != nil || a.Liveness != quick || a.Index == 0 {
		t.Fatalf("the answer is %+v, %v", a, err)
	}
	if at, until := h.Known("a"); at.Before(before) || until.Sub(at) < lease.LetGoAfter(quick) {
		t.Errorf("last heard at %v, its claims are kept until %v", at, until)
	}
	await(t, "the node to be down", func() bool { return l.status(t, "a") == claim.NodeDown })
	for status, after := range map[claim.NodeStatus]time.Duration{claim.NodeDisconnected: quick.HeartbeatTTL, claim.NodeDown: lease.LetGoAfter(quick)} {
		if at, ok := l.first("a", status); !ok || at.Sub(before) < after {
			t.Errorf("%s after %v (%t), the promise is %v", status, at.Sub(before), ok, after)
		}
	}
	await(t, "the node to be told that it is down", func() bool {
		a, err := h.Heard(t.Context(), "a", 2) // an error while its claims are let go of
		return err == nil && a.Status == claim.NodeDown
	})
	await(t, "another answer to a node that has put its record", func() bool {
		l.put(t, "a")
		a, err := h.Heard(t.Context(), "a", 3)
		return err == nil && a.Status != claim.NodeDown
	})
}

// A disconnected node is ready again with its next heartbeat.
func TestANodeThatIsHeardAgain(t *testing.T) {
	l := &told{Server: clustertest.Start(t)}
	l.put(t, "a")
	h, _ := lead(t, l, claim.Liveness{HeartbeatTTL: 300 * time.Millisecond, StopAfter: time.Hour, Margin: 10 * time.Hour})
	await(t, "the node to be disconnected", func() bool { return l.status(t, "a") == claim.NodeDisconnected })
	await(t, "the node to be ready", func() bool {
		if _, err := h.Heard(t.Context(), "a", 1); err != nil {
			t.Fatal(err)
		}
		return l.status(t, "a") == claim.NodeReady
	})
	if _, down := l.first("a", claim.NodeDown); down {
		t.Error("it was down")
	}
}

// A node that registers and never sends a heartbeat is counted too.
func TestANodeThatIsNewAndSilent(t *testing.T) {
	l := &told{Server: clustertest.Start(t)}
	lead(t, l, quick)
	before := time.Now()
	l.put(t, "b")
	await(t, "the node to be down", func() bool { return l.status(t, "b") == claim.NodeDown })
	if at, _ := l.first("b", claim.NodeDown); at.Sub(before) < lease.LetGoAfter(quick) {
		t.Errorf("it is down after %v", at.Sub(before))
	}
}

// A new leader knows of no heartbeat: it counts from its begin, and keeps what was promised.
func TestANewLeaderKeepsWhatWasPromised(t *testing.T) {
	l := &told{Server: clustertest.Start(t)}
	l.put(t, "a")
	promised := claim.Liveness{HeartbeatTTL: 500 * time.Millisecond, StopAfter: time.Second, Margin: 4 * time.Second}
	if _, err := l.PutLiveness(t.Context(), promised); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	_, _ = lead(t, l, quick)
	if got := l.liveness(t); got != lease.Longer(promised, quick) {
		t.Errorf("the ledger has %+v", got)
	}
	await(t, "the node to be down", func() bool { return l.status(t, "a") == claim.NodeDown })
	if at, _ := l.first("a", claim.NodeDown); at.Sub(before) < lease.LetGoAfter(promised) {
		t.Errorf("it is down after %v, the leader before promised %v", at.Sub(before), lease.LetGoAfter(promised))
	}
	await(t, "the leader's own terms in the ledger", func() bool { return l.liveness(t) == quick })
}

// While a node's claims are being let go of, it gets no promise that they are not.
func TestNoPromiseWhileClaimsAreLetGo(t *testing.T) {
	l := &told{Server: clustertest.Start(t), fail: errors.New("the disk is slow")}
	l.put(t, "a")
	h, _ := lead(t, l, quick)
	await(t, "the decision", func() bool { _, ok := l.first("a", claim.NodeDown); return ok })
	if a, err := h.Heard(t.Context(), "a", 1); !errors.Is(err, ErrNoHeartbeats) {
		t.Errorf("it was answered %+v, %v", a, err)
	}
	l.mu.Lock()
	l.fail = nil
	l.mu.Unlock()
	await(t, "the node to be down", func() bool { return l.status(t, "a") == claim.NodeDown })
}

func TestOnlyALeaderAnswers(t *testing.T) {
	l := &told{Server: clustertest.Start(t)}
	h, stop := lead(t, l, quietTerms)
	if _, err := h.Heard(t.Context(), "new", 1); err != nil { // it is about to put its record
		t.Error(err)
	}
	if _, until := h.Known("new"); until.IsZero() {
		t.Error("its claims are not kept")
	}
	stop()
	if _, err := h.Heard(t.Context(), "new", 2); !errors.Is(err, ErrNoHeartbeats) {
		t.Errorf("without the lead: %v", err)
	}
	if at, until := h.Known("new"); !at.IsZero() || !until.IsZero() {
		t.Error("without the lead it is known when a node was heard")
	}
}

// Many nodes at once: none is let go of before its time, and all are in the end.
func TestAThousandNodes(t *testing.T) {
	const nodes = 1000
	l := &told{Server: clustertest.Start(t)}
	var puts sync.WaitGroup
	for i := range nodes {
		puts.Go(func() { l.put(t, fmt.Sprintf("n%d", i)) })
	}
	puts.Wait()
	h, _ := lead(t, l, quick)
	heard := make([]time.Time, nodes)
	for i := range nodes {
		now := time.Now()
		a, err := h.Heard(t.Context(), fmt.Sprintf("n%d", i), 1)
		if err != nil && !errors.Is(err, ErrNoHeartbeats) {
			t.Fatal(err)
		}
		if err == nil && a.Status != claim.NodeDown { // on a slow machine it may be late
			heard[i] = now
		}
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		await(t, name+" to be down", func() bool { return l.status(t, name) == claim.NodeDown })
	}
	for i := range nodes {
		if at, _ := l.first(fmt.Sprintf("n%d", i), claim.NodeDown); at.Sub(heard[i]) < lease.LetGoAfter(quick) {
			t.Errorf("node %d is down %v after it was heard", i, at.Sub(heard[i]))
		}
	}
}
