// Package heartbeat is the leader's side of a node's lease: it answers heartbeats and decides from them which
// nodes are ready, disconnected or down.
//
// What must stay true: an answer is a promise that the node's claims are left alone for stop_after and
// stop_margin from when its heartbeat was received (package lease), so a node is down only after that; what was
// promised is in the ledger before anything is, so the next leader keeps it; and no heartbeat of a node is
// answered while its claims are being released.
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/fencing/lease"
)

// ErrNotAnswered means that this server answers no heartbeat now: it does not lead, became the leader a moment ago, or
// is releasing the node's claims. The node should retry.
var ErrNotAnswered = errors.New("this server does not answer heartbeats now")

// Ledger is what a Tracker needs of the cluster (*cluster.Node).
type Ledger interface {
	cluster.Ledger
	// ReadLatest reads on the leader, after it has made sure that it leads.
	ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error
	Watch(ctx context.Context, topics ...state.Topic) <-chan struct{}
}

// Bounds of the work on nodes' statuses.
const (
	statusWorkers = 8
	statusRate    = 200         // status changes per second, and the burst
	statusRetry   = time.Second // after a change that failed
	listPause     = time.Second // at least, between two reads of the nodes
)

// Tracker knows, on the leader, which nodes are alive.
type Tracker struct {
	Cluster Ledger
	// Liveness is what this server promises nodes while it leads.
	Liveness claim.Liveness
	Log      hclog.Logger

	mu   sync.Mutex
	term *leaderTerm // nil: this server does not lead, or has not read the ledger yet
}

// leaderTerm is what the tracker knows during one term of this server as the leader. Its times are monotonic, which
// stand still while the machine is suspended: then nodes are down later, never earlier.
type leaderTerm struct {
	began   time.Time
	promise claim.Liveness // made by every answer of this term
	// inherited keeps promise and the promises of earlier leaders: nodes may still hold leases of them.
	inherited claim.Liveness
	nodes     map[string]*node
	undone    bool // some nodes' records could not be acted on when they were last read
	due       dueHeap
	kick      chan struct{} // filled when due has another first node
	work      chan *node
}

// node is the tracker's state for one node.
type node struct {
	name      string
	status    claim.NodeStatus
	heard     time.Time // when the last answered heartbeat was received; before the first, when the term began
	spoke     bool      // a heartbeat was answered in this term
	keepUntil time.Time // its claims are left alone until then
	// next is when a status change is due; zero: never. at is the index in leaderTerm.due.
	next time.Time
	at   int
	// changing is the status that is being written to the ledger. While it is down, no heartbeat is answered.
	changing claim.NodeStatus
	// changes counts the statuses that were written: a status that was read before the last one is stale.
	changes int
}

// Run tracks nodes until ctx ends. It is called once for each term in which this server leads.
func (t *Tracker) Run(ctx context.Context) {
	term, err := t.begin(ctx)
	for err != nil {
		if ctx.Err() != nil {
			return
		}
		t.Log.Error("heartbeats cannot be answered until the ledger is read: retrying", "error", err)
		select {
		case <-time.After(statusRetry):
		case <-ctx.Done():
			return
		}
		term, err = t.begin(ctx)
	}
	defer t.set(nil)
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := rate.NewLimiter(statusRate, statusRate)
	for range statusWorkers {
		loops.Go(func() { t.changeStatuses(ctx, term, limit) })
	}
	loops.Go(func() { t.followNodes(ctx, term) })
	loops.Go(func() { t.putPromise(ctx, term) })
	t.decide(ctx, term)
}

// begin starts to count every node, and records what nodes are promised before anything is. That is the longer of this
// server's promise and of earlier ones: nodes may have leases of these, and the next leader must know.
func (t *Tracker) begin(ctx context.Context) (*leaderTerm, error) {
	term := &leaderTerm{
		began: time.Now(), promise: t.Liveness, nodes: map[string]*node{}, kick: make(chan struct{},
			1), work: make(chan *node),
	}
	var before claim.Liveness
	var nodes []claim.Node
	err := t.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		if before, _, err = tx.Liveness(); err != nil {
			return err
		}
		nodes, err = tx.Nodes()
		return err
	})
	if err != nil {
		return nil, err
	}
	term.inherited = claim.Longest(before, t.Liveness)
	if term.inherited != before {
		if _, err := cluster.Apply(ctx, t.Cluster, &command.PutLiveness{Liveness: term.inherited}); err != nil {
			return nil, fmt.Errorf("record what nodes are promised: %w", err)
		}
	}
	for _, n := range nodes {
		term.add(n.Name, n.Status)
	}
	t.set(term)
	return term, nil
}

func (t *Tracker) set(term *leaderTerm) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.term = term
}

// putPromise records this server's own promise once no node can have a lease of a longer one.
func (t *Tracker) putPromise(ctx context.Context, term *leaderTerm) {
	if term.inherited == term.promise {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(time.Until(term.began.Add(claim.ReleaseAfter(term.inherited)))):
	}
	for ctx.Err() == nil {
		if _, err := cluster.Apply(ctx, t.Cluster, &command.PutLiveness{Liveness: term.promise}); err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(statusRetry):
		}
	}
}

// add begins to count a node. The tracker's lock is held, or the term is not set yet.
func (term *leaderTerm) add(name string, status claim.NodeStatus) *node {
	n := &node{
		name: name, status: status, heard: term.began,
		keepUntil: time.Now().Add(claim.ReleaseAfter(term.inherited)), at: -1,
	}
	term.nodes[name] = n
	term.schedule(n)
	return n
}

// Answer answers the heartbeat of a node in the boot with this ID. It must be called as soon as the heartbeat
// was received. A node that the ledger does not know gets the status down, because it has no claims. Errors:
// ErrNotAnswered; claim.ErrEarlierBoot; command.ErrNotLeader.
func (t *Tracker) Answer(ctx context.Context, name, bootID string) (lease.Answer, error) {
	received := time.Now()
	for {
		term, changes, err := t.present(name)
		if err != nil {
			return lease.Answer{}, err
		}
		a, unknown := lease.Answer{Liveness: term.promise}, true
		err = t.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
			if a.Index, err = tx.Index(); err != nil {
				return err
			}
			n, err := tx.Node(name)
			switch {
			case errors.Is(err, claim.ErrNodeNotFound):
				a.Status = claim.NodeDown
				return nil
			case err == nil && n.AnotherBoot(bootID):
				return n.EarlierBoot()
			}
			a.Status, a.LostIndex = n.Status, n.LostIndex
			unknown = false
			return err
		})
		if err != nil || unknown {
			return a, err
		}
		switch done, err := t.promise(term, name, changes, received, a.Status); {
		case err != nil:
			return lease.Answer{}, err
		case done:
			return a, nil
		}
	}
}

// present returns the current term and how often a node's status was changed in it. It is called before the ledger
// is read.
func (t *Tracker) present(name string) (term *leaderTerm, changes int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term == nil {
		return nil, 0, ErrNotAnswered
	}
	if n := t.term.nodes[name]; n != nil {
		changes = n.changes
	}
	return t.term, changes, nil
}

// promise records the promise in an answer. It does nothing if the status was read before its last change.
func (t *Tracker) promise(term *leaderTerm, name string, changes int, received time.Time,
	status claim.NodeStatus,
) (done bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term != term {
		return false, ErrNotAnswered
	}
	n := term.nodes[name]
	if n == nil {
		n = term.add(name, status)
	}
	switch {
	case n.changing == claim.NodeDown:
		return false, fmt.Errorf("%w: the claims of node %q are being released", ErrNotAnswered, name)
	case n.changes != changes:
		return false, nil
	}
	n.status, n.spoke = status, true
	if received.After(n.heard) {
		n.heard = received
	}
	if keepUntil := received.Add(claim.ReleaseAfter(term.promise)); status != claim.NodeDown &&
		keepUntil.After(n.keepUntil) {
		n.keepUntil = keepUntil
	}
	term.schedule(n)
	return true, nil
}

// Known returns when a node's last answered heartbeat was received (zero: none was in this term), and until when its
// claims are kept if no other follows (zero: the node is down). Both are zero if this server does not lead, or does
// not know the node.
func (t *Tracker) Known(name string) (lastHeard, keepsTo time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term == nil || t.term.nodes[name] == nil {
		return lastHeard, keepsTo
	}
	n := t.term.nodes[name]
	if n.spoke {
		lastHeard = n.heard
	}
	if n.status != claim.NodeDown {
		keepsTo = n.keepUntil
	}
	return lastHeard, keepsTo
}
