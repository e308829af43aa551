package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick timeouts expire in a test, and long ones do not.
var (
	quick = claim.Liveness{
		HeartbeatTTL: 400 * time.Millisecond, StopAfter: 600 * time.Millisecond,
		Margin: 2 * time.Second,
	}
	long = claim.Liveness{HeartbeatTTL: time.Hour, StopAfter: time.Hour, Margin: 10 * time.Hour}
)

// fakeLedger is a real ledger that records when statuses were set, and returns errors as fail says.
type fakeLedger struct {
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

func (l *fakeLedger) Apply(ctx context.Context, c command.Command) (any, error) {
	if set, ok := c.(*command.SetNodeStatus); ok {
		l.mu.Lock()
		l.sets = append(l.sets, statusSet{set.Name, set.Status, time.Now()})
		err := l.fail
		l.mu.Unlock()
		if err != nil && set.Status == claim.NodeDown {
			return nil, err
		}
	}
	return l.Server.Apply(ctx, c)
}

// first returns the time at which a node first got a status.
func (l *fakeLedger) first(node string, status claim.NodeStatus) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.sets, func(s statusSet) bool { return s.node == node && s.status == status })
	if i < 0 {
		return time.Time{}, false
	}
	return l.sets[i].at, true
}

func (l *fakeLedger) status(t *testing.T, name string) claim.NodeStatus {
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

func (l *fakeLedger) liveness(t *testing.T) (now claim.Liveness) {
	t.Helper()
	if err := l.Read(t.Context(), func(tx *state.ReadTx) (err error) {
		now, _, err = tx.Liveness()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return now
}

func (l *fakeLedger) put(t *testing.T, name string) {
	t.Helper()
	if _, err := cluster.Apply(t.Context(), l,
		&command.PutNode{Node: claim.Node{Name: name, BootID: "boot"}}); err != nil {
		t.Fatal(err)
	}
}

// lead runs a tracker on a ledger until the test ends, or stop is called.
func lead(t *testing.T, l *fakeLedger, promise claim.Liveness) (h *Tracker, stop func()) {
	t.Helper()
	h = &Tracker{Cluster: l, Liveness: promise, Log: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { h.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); run.Wait() })
	t.Cleanup(stop)
	check.Eventually(t, "heartbeats to be answered", func() bool {
		_, _, err := h.present("")
		return err == nil
	})
	return h, stop
}

func TestSilentNodeBecomesDisconnectedThenDown(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	l.put(t, "a")
	h, _ := lead(t, l, quick)
	before := time.Now()
	a, err := h.Answer(t.Context(), "a", "boot")
	if err != nil || a.Liveness != quick || a.Index == 0 {
		t.Fatalf("the answer is %+v, %v", a, err)
	}
	if at, until := h.Known("a"); at.Before(before) || until.Sub(at) < claim.ReleaseAfter(quick) {
		t.Errorf("last heard at %v, its claims are kept until %v", at, until)
	}
	check.Eventually(t, "the node to be down", func() bool { return l.status(t, "a") == claim.NodeDown })
	for status, after := range map[claim.NodeStatus]time.Duration{
		claim.NodeDisconnected: quick.HeartbeatTTL,
		claim.NodeDown:         claim.ReleaseAfter(quick),
	} {
		if at, ok := l.first("a", status); !ok || at.Sub(before) < after {
			t.Errorf("%s after %v (%t), the promise is %v", status, at.Sub(before), ok, after)
		}
	}
	check.Eventually(t, "the node to be told that it is down", func() bool {
		a, err := h.Answer(t.Context(), "a", "boot") // an error while its claims are released
		return err == nil && a.Status == claim.NodeDown
	})
	check.Eventually(t, "another answer to a node that has put its record", func() bool {
		l.put(t, "a")
		a, err := h.Answer(t.Context(), "a", "boot")
		return err == nil && a.Status != claim.NodeDown
	})
}

func TestDisconnectedNodeIsReadyAfterAHeartbeat(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	l.put(t, "a")
	h, _ := lead(t, l, claim.Liveness{HeartbeatTTL: 300 * time.Millisecond, StopAfter: time.Hour, Margin: 10 * time.Hour})
	check.Eventually(t, "the node to be disconnected", func() bool { return l.status(t, "a") == claim.NodeDisconnected })
	check.Eventually(t, "the node to be ready", func() bool {
		if _, err := h.Answer(t.Context(), "a", "boot"); err != nil {
			t.Fatal(err)
		}
		return l.status(t, "a") == claim.NodeReady
	})
	if _, down := l.first("a", claim.NodeDown); down {
		t.Error("it was down")
	}
}

// A node that registers and never sends a heartbeat is counted too.
func TestNodeThatNeverSendsAHeartbeatGoesDown(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	lead(t, l, quick)
	before := time.Now()
	l.put(t, "b")
	check.Eventually(t, "the node to be down", func() bool { return l.status(t, "b") == claim.NodeDown })
	if at, _ := l.first("b", claim.NodeDown); at.Sub(before) < claim.ReleaseAfter(quick) {
		t.Errorf("it is down after %v", at.Sub(before))
	}
}

// A new leader has not received any heartbeat. It counts from the start of its term, and keeps the promises
// of earlier leaders.
func TestNewLeaderKeepsEarlierPromises(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	l.put(t, "a")
	promised := claim.Liveness{HeartbeatTTL: 500 * time.Millisecond, StopAfter: time.Second, Margin: 4 * time.Second}
	if _, err := cluster.Apply(t.Context(), l, &command.PutLiveness{Liveness: promised}); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	_, _ = lead(t, l, quick)
	if got := l.liveness(t); got != claim.Longest(promised, quick) {
		t.Errorf("the ledger has %+v", got)
	}
	check.Eventually(t, "the node to be down", func() bool { return l.status(t, "a") == claim.NodeDown })
	if at, _ := l.first("a", claim.NodeDown); at.Sub(before) < claim.ReleaseAfter(promised) {
		t.Errorf("it is down after %v, the leader before promised %v", at.Sub(before), claim.ReleaseAfter(promised))
	}
	check.Eventually(t, "the leader's own promise in the ledger", func() bool { return l.liveness(t) == quick })
}

// While a node's claims are being released, its heartbeats are not answered.
func TestNoAnswerWhileClaimsAreReleased(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t), fail: errors.New("the disk is slow")}
	l.put(t, "a")
	h, _ := lead(t, l, quick)
	check.Eventually(t, "the decision", func() bool { _, ok := l.first("a", claim.NodeDown); return ok })
	if a, err := h.Answer(t.Context(), "a", "boot"); !errors.Is(err, ErrNotAnswered) {
		t.Errorf("it was answered %+v, %v", a, err)
	}
	l.mu.Lock()
	l.fail = nil
	l.mu.Unlock()
	check.Eventually(t, "the node to be down", func() bool { return l.status(t, "a") == claim.NodeDown })
}

func TestOnlyALeaderAnswers(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	h, stop := lead(t, l, long)
	l.put(t, "new")
	if _, err := h.Answer(t.Context(), "new", "boot"); err != nil {
		t.Error(err)
	}
	if _, until := h.Known("new"); until.IsZero() {
		t.Error("its claims are not kept")
	}
	stop()
	if _, err := h.Answer(t.Context(), "new", "boot"); !errors.Is(err, ErrNotAnswered) {
		t.Errorf("without the lead: %v", err)
	}
	if at, until := h.Known("new"); !at.IsZero() || !until.IsZero() {
		t.Error("without the lead it is known when a node was heard")
	}
}

// Of two heartbeats that are answered at once, the older one may be the last.
func TestLateAnswerShortensNoPromise(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	l.put(t, "a")
	h, _ := lead(t, l, quick)
	_, err := h.Answer(t.Context(), "a", "boot")
	check.NoError(t, err)
	heard, until := h.Known("a")
	term, changes, err := h.present("a")
	check.NoError(t, err)
	done, err := h.promise(term, "a", changes, heard.Add(-quick.HeartbeatTTL), claim.NodeReady)
	if at, now := h.Known("a"); err != nil || !done || at != heard || now.Before(until) {
		t.Errorf("heard at %v, and its claims are kept until %v instead of %v: %t, %v", at, now, until, done, err)
	}
}

// A node that the ledger does not know gets the status down, and another boot of a node gets no answer while
// the earlier one may use its claims. Nothing is promised to either of them.
func TestNoPromiseToAnotherMachine(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	h, _ := lead(t, l, long)
	if a, err := h.Answer(t.Context(), "new", "boot"); err != nil || a.Status != claim.NodeDown {
		t.Errorf("a node that is not registered: %+v, %v", a, err)
	}
	if _, until := h.Known("new"); !until.IsZero() {
		t.Error("claims of a node that is not registered are kept")
	}
	hash := strings.Repeat("0", 64)
	put, err := cluster.Apply(t.Context(), l,
		&command.PutNode{Node: claim.Node{Name: "a", BootID: "boot", SecretHash: hash}})
	check.NoError(t, err)
	a, err := h.Answer(t.Context(), "a", "boot")
	if err != nil || a.LostIndex != put.Node.CreateIndex || a.Index < a.LostIndex {
		t.Errorf("the node itself: %+v, %v", a, err)
	}
	_, until := h.Known("a")
	if _, err := h.Answer(t.Context(), "a", "another"); !errors.Is(err, claim.ErrEarlierBoot) {
		t.Errorf("another boot: %v", err)
	}
	if _, now := h.Known("a"); now != until {
		t.Error("another boot has lengthened the lease")
	}
}

// With many nodes no claim is released too early, and all are released in the end.
func TestAThousandNodes(t *testing.T) {
	const nodes = 1000
	l := &fakeLedger{Server: clustertest.Start(t)}
	var puts sync.WaitGroup
	for i := range nodes {
		puts.Go(func() { l.put(t, fmt.Sprintf("n%d", i)) })
	}
	puts.Wait()
	h, _ := lead(t, l, quick)
	heard := make([]time.Time, nodes)
	for i := range nodes {
		now := time.Now()
		a, err := h.Answer(t.Context(), fmt.Sprintf("n%d", i), "boot")
		if err != nil && !errors.Is(err, ErrNotAnswered) {
			t.Fatal(err)
		}
		if err == nil && a.Status != claim.NodeDown { // on a slow machine it may be down already
			heard[i] = now
		}
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		check.Eventually(t, name+" to be down", func() bool { return l.status(t, name) == claim.NodeDown })
	}
	for i := range nodes {
		if at, _ := l.first(fmt.Sprintf("n%d", i), claim.NodeDown); at.Sub(heard[i]) < claim.ReleaseAfter(quick) {
			t.Errorf("node %d is down %v after it was heard", i, at.Sub(heard[i]))
		}
	}
}

// No node is missed that changes after the term's beginning: one that is new, one that registers while the tracker
// still records that it is down, and one that is gone while its lease may stand.
func TestNodesAreFollowed(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	for _, name := range []string{"a", "b"} {
		l.put(t, name)
	}
	h := &Tracker{Cluster: l, Liveness: long, Log: hclog.NewNullLogger()}
	term, err := h.begin(t.Context())
	check.NoError(t, err)
	list := func() {
		t.Helper()
		check.NoError(t, h.list(t.Context(), term))
	}
	l.put(t, "c")
	list()
	if term.nodes["a"] == nil || term.nodes["b"] == nil || term.nodes["c"] == nil {
		t.Errorf("nodes are missing: %v", term.nodes)
	}

	a := term.nodes["a"]
	h.mu.Lock()
	a.changing = claim.NodeDown
	h.mu.Unlock()
	for _, status := range []claim.NodeStatus{claim.NodeDown, claim.NodeReady} {
		_, err = cluster.SetNodeStatus(t.Context(), l, "a", status, "")
		check.NoError(t, err)
	}
	list()
	if !term.undone {
		t.Error("a node that registers while it goes down is not looked at again")
	}
	h.mu.Lock()
	a.changing, a.status = "", claim.NodeDown
	h.mu.Unlock()
	list() // nothing has changed since
	if a.status != claim.NodeReady || !a.keepUntil.After(time.Now()) {
		t.Errorf("a node that has registered again is %s, its claims are kept until %v", a.status, a.keepUntil)
	}

	_, err = cluster.Apply(t.Context(), l, &command.DeleteNode{Name: "b"})
	check.NoError(t, err)
	list()
	b := term.nodes["b"]
	if b == nil || !term.undone {
		t.Fatal("a node whose lease may stand is forgotten")
	}
	h.mu.Lock()
	b.heard = b.heard.Add(-claim.ReleaseAfter(long))
	h.mu.Unlock()
	list()
	if term.nodes["b"] != nil {
		t.Error("a node that is gone is counted")
	}
}

// A node that registers late in a term is not disconnected before it has had the time for a heartbeat.
func TestANewNodeHasTimeForItsFirstHeartbeat(t *testing.T) {
	l := &fakeLedger{Server: clustertest.Start(t)}
	h := &Tracker{Cluster: l, Liveness: long, Log: hclog.NewNullLogger()}
	term, err := h.begin(t.Context())
	check.NoError(t, err)
	term.began = term.began.Add(-2 * long.HeartbeatTTL)
	l.put(t, "late")
	check.NoError(t, h.list(t.Context(), term))
	if status, at := term.wants(term.nodes["late"]); !at.After(time.Now()) {
		t.Errorf("it is to be %s since %v", status, at)
	}
}
