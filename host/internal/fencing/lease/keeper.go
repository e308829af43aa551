package lease

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

// Answer is the leader's answer to a heartbeat.
type Answer struct {
	// Status is the node's status in the ledger. If it is down, the servers have released its claims: it gets no lease
	// until it has unmounted everything and registered again.
	Status claim.NodeStatus
	// Liveness is the timeouts that the leader keeps to.
	Liveness claim.Liveness
	// LostIndex is the index at which others last released claims of the node (claim.Node). The node gets no lease by
	// this answer until it has compared what runs on it with the ledger of that index.
	LostIndex uint64
	// Index is the ledger's when the leader answered.
	Index uint64
}

// Servers is the way to the leader.
type Servers interface {
	// Heartbeat tells the leader that the node is alive. It tries one server after another until ctx ends.
	Heartbeat(ctx context.Context, node string) (Answer, error)
}

// Keeper sends this node's heartbeats, and reports when the lease is lost and when the servers are back.
type Keeper struct {
	Node    string
	Lease   *Lease
	Servers Servers
	// Lost, if set, is called each time the lease ends, to stop the workloads with volumes. why is for people. ctx
	// ends with the keeper.
	Lost func(ctx context.Context, why string)
	// Back, if set, is called with the first answer after Lost and after the start, to compare what runs here with the
	// ledger. With the status down the node must register again after that. After an error it is called again, with
	// each answer, and a heartbeat is sent soon.
	Back func(ctx context.Context, a Answer) error
	Log  hclog.Logger

	answered chan Answer
	// comparedTo is the index of a ledger with which what runs here was compared, at least; again asks for the next
	// heartbeat within a time.
	comparedTo atomic.Uint64
	again      chan time.Duration
}

// Bounds of the pauses between heartbeats.
const (
	// firstRetry is the pause after a heartbeat that was not answered. It doubles with each further one.
	firstRetry = 100 * time.Millisecond
	// minTimeout is the shortest timeout of a heartbeat.
	minTimeout = time.Second
)

// Run sends heartbeats until ctx ends, and waits for Lost and Back.
func (k *Keeper) Run(ctx context.Context) {
	k.answered, k.again = make(chan Answer, 1), make(chan time.Duration, 1)
	var loops sync.WaitGroup
	loops.Go(func() { k.beat(ctx) })
	loops.Go(func() { k.follow(ctx) })
	loops.Wait()
}

// beat sends three heartbeats per heartbeat_ttl, and more often while none is answered.
func (k *Keeper) beat(ctx context.Context) {
	every, pause := claim.DefaultLiveness.HeartbeatTTL/3, time.Duration(0)
	failing := false
	for {
		a, err := k.send(ctx, every)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if failing {
				k.Log.Info("the servers answer this node's heartbeats again")
			}
			failing, every, pause = false, max(claim.MinHeartbeatTTL, a.Liveness.HeartbeatTTL)/3, 0
			k.tellAnswer(a)
		default:
			if !failing {
				k.Log.Warn("no server has answered this node's heartbeat: retrying", "error", err)
			}
			failing = true
			pause = min(max(firstRetry, 2*pause), every)
		}
		next := every
		if failing {
			next = pause
		}
		if !k.pause(ctx, jitter(next)) {
			return
		}
	}
}

// pause waits for d, or less if another heartbeat is asked for; false: ctx has ended.
func (k *Keeper) pause(ctx context.Context, d time.Duration) bool {
	due, timer := time.Now().Add(d), time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case soon := <-k.again:
			timer.Reset(min(time.Until(due), jitter(soon)))
		case <-ctx.Done():
			return false
		}
	}
}

// send sends one heartbeat and renews the lease with its answer. The lease counts from before it is sent.
func (k *Keeper) send(ctx context.Context, every time.Duration) (Answer, error) {
	bounded, cancel := context.WithTimeout(ctx, max(minTimeout, every/2))
	defer cancel()
	sent := boottime.Now()
	a, err := k.Servers.Heartbeat(bounded, k.Node)
	if err != nil {
		k.Lease.NotGranted(err)
		return a, err
	}
	if a.Status == claim.NodeDown {
		return a, k.Lease.Expire(bounded, "the servers consider this node down and have released its claims")
	}
	if k.Back != nil && a.LostIndex > k.comparedTo.Load() {
		return a, nil // follow compares first, and asks for another heartbeat
	}
	return a, k.Lease.Renew(bounded, sent, a.Liveness)
}

// jitter shortens d by up to a tenth, so that nodes do not send at the same time.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(max(1, int64(d)/10)))
}

// tellAnswer hands the newest answer to follow.
func (k *Keeper) tellAnswer(a Answer) {
	select {
	case <-k.answered:
	default:
	}
	k.answered <- a
}

// follow calls Lost and Back, one after the other. Lost comes first, also if the answer that says so is there already:
// a
// node registers again only after it has stopped.
func (k *Keeper) follow(ctx context.Context) {
	var compared uint64      // the epoch in which what runs here was last compared with the ledger
	var retry time.Duration  // the pause after the last comparison, if it failed
	var told <-chan struct{} // of the last lease that Lost was called for
	for {
		lost := k.Lease.Lost()
		if lost == told {
			lost = nil
		}
		var a Answer
		answered := false
		select {
		case <-ctx.Done():
			return
		case a = <-k.answered:
			answered = true
		case <-lost:
		}
		select {
		case <-lost:
			told = lost
			if k.Lost != nil {
				k.Lost(ctx, k.Lease.Why())
			}
		default:
		}
		if !answered {
			continue
		}
		epoch := k.Lease.Epoch()
		renewed := a.Status != claim.NodeDown && a.LostIndex <= k.comparedTo.Load()
		if renewed && epoch == compared || k.Back == nil {
			continue
		}
		err := k.Back(ctx, a)
		switch {
		case err == nil:
			compared, retry = epoch, 0
			k.comparedTo.Store(max(a.Index, k.comparedTo.Load()))
			if !renewed {
				k.beatWithin(firstRetry)
			}
		case ctx.Err() == nil:
			k.Log.Warn("what runs on this node could not be compared with the ledger: retrying with the next heartbeat", "error",
				err)
			retry = min(max(firstRetry, 2*retry), claim.DefaultLiveness.HeartbeatTTL)
			k.beatWithin(retry)
		}
	}
}

// beatWithin asks for the next heartbeat within a time.
func (k *Keeper) beatWithin(d time.Duration) {
	select {
	case k.again <- d:
	default:
	}
}
