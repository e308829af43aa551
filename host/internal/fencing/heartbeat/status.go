package heartbeat

import (
	"container/heap"
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// wants is the status that a node should have next, and when.
func (term *leaderTerm) wants(n *node) (claim.NodeStatus, time.Time) {
	silent := n.heard.Add(term.inherited.HeartbeatTTL)
	if n.spoke {
		silent = n.heard.Add(term.promise.HeartbeatTTL)
	}
	switch n.status {
	case claim.NodeDown: // until it registers again
		return "", time.Time{}
	case claim.NodeDisconnected:
		if n.spoke && silent.After(time.Now()) {
			return claim.NodeReady, n.heard
		}
		return claim.NodeDown, n.keepUntil
	default:
		return claim.NodeDisconnected, silent
	}
}

// schedule moves a node to its place in the order of due times. The tracker's lock is held.
func (term *leaderTerm) schedule(n *node) {
	if n.changing != "" {
		return // the change schedules it when it is over
	}
	_, n.next = term.wants(n)
	switch {
	case n.next.IsZero() && n.at >= 0:
		heap.Remove(&term.due, n.at)
	case n.next.IsZero():
	case n.at >= 0:
		heap.Fix(&term.due, n.at)
	default:
		heap.Push(&term.due, n)
	}
	if n.at == 0 {
		term.wake()
	}
}

// wake makes decide check the first due time again.
func (term *leaderTerm) wake() {
	select {
	case term.kick <- struct{}{}:
	default:
	}
}

// decide hands nodes to the workers when their status change is due, with one timer for all.
func (t *Tracker) decide(ctx context.Context, term *leaderTerm) {
	for {
		n, wait := t.takeDue(term)
		if n != nil {
			select {
			case term.work <- n:
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
		case <-term.kick:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// takeDue takes a node whose status change is due, or returns how long none is due.
func (t *Tracker) takeDue(term *leaderTerm) (*node, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(term.due) == 0 {
		return nil, time.Hour
	}
	n := term.due[0]
	if wait := time.Until(n.next); wait > 0 {
		return nil, wait
	}
	n.changing, _ = term.wants(n)
	heap.Remove(&term.due, n.at)
	return n, 0
}

// changeStatuses is a worker: it writes status changes to the ledger.
func (t *Tracker) changeStatuses(ctx context.Context, term *leaderTerm, limit *rate.Limiter) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-term.work:
			if limit.Wait(ctx) != nil {
				return
			}
			t.change(ctx, term, n)
		}
	}
}

func (t *Tracker) change(ctx context.Context, term *leaderTerm, n *node) {
	t.mu.Lock()
	if n.changing != claim.NodeDown {
		// A heartbeat may have been answered since the node was handed out; a heartbeat of a node that goes down is not.
		if now, at := term.wants(n); now != n.changing || at.After(time.Now()) {
			n.changing = ""
			term.schedule(n)
			t.mu.Unlock()
			return
		}
	}
	status, silent := n.changing, time.Since(n.heard)
	t.mu.Unlock()
	result, err := cluster.SetNodeStatus(ctx, t.Cluster, n.name, status, "")
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case errors.Is(err, claim.ErrNodeNotFound):
		n.changing = ""
		delete(term.nodes, n.name)
		return
	case err != nil && ctx.Err() != nil:
		return // the term is over
	case err != nil:
		t.Log.Warn("the status of a node could not be changed: retrying", "node", n.name, "status", status, "error", err)
		// The change may have been applied nevertheless, so a node that goes down must go down.
		n.next = time.Now().Add(statusRetry)
		if status != claim.NodeDown {
			n.changing = ""
		}
		heap.Push(&term.due, n)
		term.wake()
		return
	}
	n.changing, n.status = "", result.Node.Status
	n.changes++
	t.log(n.name, status, silent, result)
	term.schedule(n)
}

func (t *Tracker) log(name string, status claim.NodeStatus, silent time.Duration, result command.SetNodeStatusResult) {
	silent = silent.Round(time.Millisecond)
	switch status {
	case claim.NodeDown:
		t.Log.Warn("a node is down: it sent no heartbeat for so long that its lease is over, and its claims are released",
			"node", name, "silent_for", silent, "workloads", len(result.Ended), "claims", len(result.Freed))
	case claim.NodeDisconnected:
		t.Log.Warn("a node is disconnected: it sends no heartbeats and starts no workloads, and its claims stand",
			"node", name, "silent_for", silent)
	default:
		t.Log.Info("a node sends heartbeats again", "node", name)
	}
}

// followNodes counts nodes that are new in the ledger, and forgets nodes that are gone.
func (t *Tracker) followNodes(ctx context.Context, term *leaderTerm) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		changed := t.Cluster.Watch(watching, state.TopicNodes)
		err := t.list(ctx, term)
		if err != nil && ctx.Err() == nil {
			t.Log.Error("the nodes in the ledger cannot be read", "error", err)
		}
		if err != nil || term.undone {
			cancel() // look again without a change
		}
		select {
		case <-ctx.Done():
		case <-time.After(listPause):
			<-changed // also when ctx ends
		}
		cancel()
	}
}

// list reads the nodes.
func (t *Tracker) list(ctx context.Context, term *leaderTerm) error {
	t.mu.Lock()
	down := map[string]bool{} // what is read of a node that goes down meanwhile may be older
	for name, n := range term.nodes {
		down[name] = n.status == claim.NodeDown && n.changing == ""
	}
	t.mu.Unlock()
	var nodes []claim.Node
	err := t.Cluster.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		nodes, err = tx.Nodes()
		return err
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	term.undone = false
	listed := make(map[string]bool, len(nodes))
	keep := claim.ReleaseAfter(term.inherited)
	for _, read := range nodes {
		listed[read.Name] = true
		n := term.nodes[read.Name]
		switch {
		case n == nil:
			// It has registered after the term began, and is not silent since then.
			n = term.add(read.Name, read.Status)
			n.heard = time.Now()
			term.schedule(n)
		case n.changing != "":
			term.undone = true
		case down[read.Name] && n.status == claim.NodeDown && read.Status != claim.NodeDown:
			// It has registered again, and may be gone before its first heartbeat.
			n.status, n.heard, n.keepUntil = read.Status, time.Now(), time.Now().Add(keep)
			term.schedule(n)
		}
	}
	for name, n := range term.nodes {
		switch {
		case listed[name]:
		case n.changing != "" || n.heard.Add(keep).After(time.Now()):
			term.undone = true
		default:
			n.status = claim.NodeDown // nothing is due any more
			term.schedule(n)
			delete(term.nodes, name)
		}
	}
	return nil
}

// dueHeap is a heap of nodes; the one whose status change is due first is at the top.
type dueHeap []*node

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].next.Before(h[j].next) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	n, _ := x.(*node)
	n.at = len(*h)
	*h = append(*h, n)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	n := (*h)[last]
	(*h)[last], n.at = nil, -1
	*h = (*h)[:last]
	return n
}
