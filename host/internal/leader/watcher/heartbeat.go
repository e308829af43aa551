package watcher

import (
	"container/heap"
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

// ErrNoHeartbeats says that this server answers no heartbeats now: it does not lead, or
// began to a moment ago. The node is to ask again.
var ErrNoHeartbeats = errors.New("this server does not answer heartbeats now")

// HeartbeatLedger is what Heartbeats need of the cluster (*cluster.Node).
type HeartbeatLedger interface {
	// ReadLatest reads on the leader, after it has made sure that it leads.
	ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error
	Watch(ctx context.Context, topics ...state.Topic) <-chan struct{}
	SetNodeStatus(ctx context.Context, name string, status claim.NodeStatus, by string) (command.SetNodeStatusResult, error)
	PutLiveness(ctx context.Context, l claim.Liveness) (claim.Liveness, error)
}

// Bounds of the work on nodes' statuses.
const (
	statusWorkers = 8
	// statusRate is how many statuses are changed in a second at most, and at once.
	statusRate = 200
	// statusRetry is the pause after a change that failed.
	statusRetry = time.Second
	// listPause lies at least between two reads of all nodes.
	listPause = time.Second
)

// Heartbeats are the leader's knowledge of which nodes live. A heartbeat that it answers is
// a promise to the node (package lease): its claims are left alone for StopAfter and
// Margin from the moment it was received.
type Heartbeats struct {
	Cluster HeartbeatLedger
	// Terms are what this server promises while it leads.
	Terms claim.Liveness
	Log   hclog.Logger

	mu    sync.Mutex
	reign *reign // nil: this server does not lead, or not yet
}

// reign is one leadership. Its times are monotonic, and stand still while the machine is
// suspended: then it lets go later.
type reign struct {
	began time.Time
	terms claim.Liveness // what is promised now
	first claim.Liveness // what is kept in the first period: also what leaders before promised
	nodes map[string]*beat
	due   beats
	kick  chan struct{} // has something in it when due has another first
	work  chan *beat
}

// beat is what is known of one node.
type beat struct {
	name   string
	status claim.NodeStatus
	heard  time.Time // the last heartbeat that was answered; the leadership's begin before that
	spoke  bool      // it was heard under this leadership
	keepTo time.Time // until then its claims are left alone
	// next is when there is something to decide; zero: never. at is the place in reign.due.
	next time.Time
	at   int
	// changing says that the ledger is being told a status. While that is down, no heartbeat
	// is answered.
	changing claim.NodeStatus
	// changes counts the statuses that the ledger was told: who has read one before that
	// reads again.
	changes int
}

// Run does the work while this server leads: it is to be called with each leadership, and
// returns when ctx ends.
func (h *Heartbeats) Run(ctx context.Context) {
	r, err := h.begin(ctx)
	for err != nil {
		if ctx.Err() != nil {
			return
		}
		h.Log.Error("heartbeats cannot be answered yet, it is tried again", "error", err)
		select {
		case <-time.After(statusRetry):
		case <-ctx.Done():
			return
		}
		r, err = h.begin(ctx)
	}
	defer h.set(nil)
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := rate.NewLimiter(statusRate, statusRate)
	for range statusWorkers {
		loops.Go(func() { h.changeStatuses(ctx, r, limit) })
	}
	loops.Go(func() { h.followNodes(ctx, r) })
	loops.Go(func() { h.promise(ctx, r) })
	h.decide(ctx, r)
}

// begin counts every node from now on, and writes down what is promised before anything is.
// It is the longer of this server's own terms and of those before: nodes may
// have leases of these, and the leader after this one has to know.
func (h *Heartbeats) begin(ctx context.Context) (*reign, error) {
	r := &reign{began: time.Now(), terms: h.Terms, nodes: map[string]*beat{}, kick: make(chan struct{}, 1), work: make(chan *beat)}
	var before claim.Liveness
	var nodes []claim.Node
	err := h.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		if before, _, err = tx.Liveness(); err != nil {
			return err
		}
		nodes, err = tx.Nodes()
		return err
	})
	if err != nil {
		return nil, err
	}
	r.first = lease.Longer(before, h.Terms)
	if r.first != before {
		if _, err := h.Cluster.PutLiveness(ctx, r.first); err != nil {
			return nil, fmt.Errorf("write down what nodes are promised: %w", err)
		}
	}
	for _, n := range nodes {
		r.add(n.Name, n.Status)
	}
	h.set(r)
	return r, nil
}

func (h *Heartbeats) set(r *reign) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reign = r
}

// promise writes down this server's own terms, once no node has a lease of longer ones.
func (h *Heartbeats) promise(ctx context.Context, r *reign) {
	if r.first == r.terms {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(time.Until(r.began.Add(lease.LetGoAfter(r.first)))):
	}
	for ctx.Err() == nil {
		if _, err := h.Cluster.PutLiveness(ctx, r.terms); err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(statusRetry):
		}
	}
}

// add begins to count a node. h.mu is held, or nobody else has r yet.
func (r *reign) add(name string, status claim.NodeStatus) *beat {
	now := time.Now()
	b := &beat{name: name, status: status, heard: r.began, keepTo: now.Add(lease.LetGoAfter(r.first)), at: -1}
	r.nodes[name] = b
	r.schedule(b)
	return b
}

// Heard answers the heartbeat of a node; it is to be called as soon as that was received.
// Errors: ErrNoHeartbeats; cluster.ErrNotLeader.
func (h *Heartbeats) Heard(ctx context.Context, node string, _ uint64) (lease.Answer, error) {
	received := time.Now()
	for {
		r, changes, err := h.before(node)
		if err != nil {
			return lease.Answer{}, err
		}
		a := lease.Answer{Liveness: r.terms}
		err = h.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
			if a.Index, err = tx.Index(); err != nil {
				return err
			}
			n, err := tx.Node(node)
			a.Status = n.Status
			if errors.Is(err, cluster.ErrNodeNotFound) {
				err = nil // it is about to put its record
			}
			return err
		})
		if err != nil {
			return lease.Answer{}, err
		}
		switch done, err := h.heard(r, node, changes, received, a.Status); {
		case err != nil:
			return lease.Answer{}, err
		case done:
			return a, nil
		}
	}
}

// before is called before the ledger is read.
func (h *Heartbeats) before(node string) (r *reign, changes int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reign == nil {
		return nil, 0, ErrNoHeartbeats
	}
	if b := h.reign.nodes[node]; b != nil {
		changes = b.changes
	}
	return h.reign, changes, nil
}

// heard makes the promise; not done where the status that was read is an old one.
func (h *Heartbeats) heard(r *reign, node string, changes int, received time.Time, status claim.NodeStatus) (done bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reign != r {
		return false, ErrNoHeartbeats
	}
	b := r.nodes[node]
	if b == nil {
		b = r.add(node, status)
	}
	switch {
	case b.changing == claim.NodeDown:
		return false, fmt.Errorf("%w: the claims of node %q are being let go of", ErrNoHeartbeats, node)
	case b.changes != changes:
		return false, nil
	}
	b.status, b.spoke = status, true
	if received.After(b.heard) {
		b.heard = received
	}
	if keepTo := received.Add(lease.LetGoAfter(r.terms)); status != claim.NodeDown && keepTo.After(b.keepTo) {
		b.keepTo = keepTo
	}
	r.schedule(b)
	return true, nil
}

// Known is when a node's heartbeat was answered last, zero where it was not under this
// leadership, and until when its claims are left alone unless it is heard from again, zero
// where it is down. Both are zero where this server does not lead, or does not know the node.
func (h *Heartbeats) Known(node string) (lastHeard, keepsTo time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reign == nil || h.reign.nodes[node] == nil {
		return lastHeard, keepsTo
	}
	b := h.reign.nodes[node]
	if b.spoke {
		lastHeard = b.heard
	}
	if b.status != claim.NodeDown {
		keepsTo = b.keepTo
	}
	return lastHeard, keepsTo
}

// wants is the status that the ledger is to have of a node, and when.
func (r *reign) wants(b *beat) (claim.NodeStatus, time.Time) {
	silent := b.heard.Add(r.first.HeartbeatTTL)
	if b.spoke {
		silent = b.heard.Add(r.terms.HeartbeatTTL)
	}
	switch b.status {
	case claim.NodeDown: // until it puts its record
		return "", time.Time{}
	case claim.NodeDisconnected:
		if b.spoke && silent.After(time.Now()) {
			return claim.NodeReady, b.heard
		}
		return claim.NodeDown, b.keepTo
	default:
		return claim.NodeDisconnected, silent
	}
}

// schedule puts a node where it belongs in the order of what is due. h.mu is held.
func (r *reign) schedule(b *beat) {
	if b.changing != "" {
		return // the change schedules it when it is over
	}
	_, b.next = r.wants(b)
	switch {
	case b.next.IsZero() && b.at >= 0:
		heap.Remove(&r.due, b.at)
	case b.next.IsZero():
	case b.at >= 0:
		heap.Fix(&r.due, b.at)
	default:
		heap.Push(&r.due, b)
	}
	if b.at == 0 {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
}

// decide hands out what is due, with one timer for all nodes.
func (h *Heartbeats) decide(ctx context.Context, r *reign) {
	for {
		b, wait := h.first(r)
		if b != nil {
			select {
			case r.work <- b:
				continue
			case <-ctx.Done():
				return
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.kick:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// first takes the node that is due, or says how long nothing is.
func (h *Heartbeats) first(r *reign) (*beat, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(r.due) == 0 {
		return nil, time.Hour
	}
	b := r.due[0]
	if wait := time.Until(b.next); wait > 0 {
		return nil, wait
	}
	b.changing, _ = r.wants(b)
	heap.Remove(&r.due, b.at)
	return b, 0
}

// changeStatuses tells the ledger.
func (h *Heartbeats) changeStatuses(ctx context.Context, r *reign, limit *rate.Limiter) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-r.work:
			if limit.Wait(ctx) != nil {
				return
			}
			h.change(ctx, r, b)
		}
	}
}

func (h *Heartbeats) change(ctx context.Context, r *reign, b *beat) {
	h.mu.Lock()
	if b.changing != claim.NodeDown {
		// A heartbeat may have come since it was handed out. To one that goes down none
		// was answered.
		if now, at := r.wants(b); now != b.changing || at.After(time.Now()) {
			b.changing = ""
			r.schedule(b)
			h.mu.Unlock()
			return
		}
	}
	status, silent := b.changing, time.Since(b.heard)
	h.mu.Unlock()
	result, err := h.Cluster.SetNodeStatus(ctx, b.name, status, "")
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.Is(err, cluster.ErrNodeNotFound):
		b.changing = ""
		delete(r.nodes, b.name)
		return
	case err != nil && ctx.Err() != nil:
		return // the leadership is over, and with it r
	case err != nil:
		h.Log.Warn("the status of a node could not be changed, it is tried again", "node", b.name, "status", status, "error", err)
		// It may have been changed all the same: one that goes down still goes down.
		b.next = time.Now().Add(statusRetry)
		if status != claim.NodeDown {
			b.changing = ""
		}
		heap.Push(&r.due, b)
		r.wake()
		return
	}
	b.changing, b.status = "", result.Node.Status
	b.changes++
	h.log(b.name, status, silent, result)
	r.schedule(b)
}

func (r *reign) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (h *Heartbeats) log(node string, status claim.NodeStatus, silent time.Duration, result command.SetNodeStatusResult) {
	silent = silent.Round(time.Millisecond)
	switch status {
	case claim.NodeDown:
		h.Log.Warn("a node was not heard from for so long that it has stopped by its own clock: its claims are let go of",
			"node", node, "silent_for", silent, "workloads", len(result.Ended), "claims", len(result.Freed))
	case claim.NodeDisconnected:
		h.Log.Warn("a node is not heard from: it starts no workloads, its claims stand", "node", node, "silent_for", silent)
	default:
		h.Log.Info("a node is heard from again", "node", node)
	}
}

// followNodes counts those that are new in the ledger, and forgets those that are gone.
func (h *Heartbeats) followNodes(ctx context.Context, r *reign) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		changed := h.Cluster.Watch(watching, state.TopicNodes)
		if err := h.list(ctx, r); err != nil && ctx.Err() == nil {
			h.Log.Error("the nodes of the ledger cannot be read", "error", err)
			cancel()
		}
		select {
		case <-ctx.Done():
		case <-time.After(listPause):
			<-changed // also when ctx ends
		}
		cancel()
	}
}

func (h *Heartbeats) list(ctx context.Context, r *reign) error {
	var nodes []claim.Node
	err := h.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		nodes, err = tx.Nodes()
		return err
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	listed := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		listed[n.Name] = true
		b := r.nodes[n.Name]
		switch {
		case b == nil:
			r.add(n.Name, n.Status)
		case b.changing == "" && b.status == claim.NodeDown && n.Status != claim.NodeDown:
			// It has put its record, and may have gone again before a heartbeat.
			b.status, b.heard, b.keepTo = n.Status, time.Now(), time.Now().Add(lease.LetGoAfter(r.first))
			r.schedule(b)
		}
	}
	for name, b := range r.nodes {
		if !listed[name] && b.changing == "" && !b.heard.Add(lease.LetGoAfter(r.first)).After(time.Now()) {
			b.status = claim.NodeDown // nothing is due any more
			r.schedule(b)
			delete(r.nodes, name)
		}
	}
	return nil
}

// beats is a heap, the one that is due first at the top.
type beats []*beat

func (b beats) Len() int           { return len(b) }
func (b beats) Less(i, j int) bool { return b[i].next.Before(b[j].next) }
func (b beats) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].at, b[j].at = i, j
}

// Push implements heap.Interface.
func (b *beats) Push(x any) {
	one, _ := x.(*beat)
	one.at = len(*b)
	*b = append(*b, one)
}

// Pop implements heap.Interface.
func (b *beats) Pop() any {
	last := len(*b) - 1
	one := (*b)[last]
	(*b)[last], one.at = nil, -1
	*b = (*b)[:last]
	return one
}
