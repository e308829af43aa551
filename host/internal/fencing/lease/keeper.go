package lease

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

// Answer is what the leader says to a heartbeat.
type Answer struct {
	// Status is what the ledger has of the node. Of a node that is down the claims
	// were let go: it gets no lease until it has taken down what it had, and has put its
	// record again.
	Status claim.NodeStatus
	// Liveness is what the leader promises.
	Liveness claim.Liveness
	// Index is the ledger's when the leader answered.
	Index uint64
}

// Servers answer heartbeats.
type Servers interface {
	// Heartbeat tells the leader that the node lives. seq grows with each. It tries one
	// server after another, and returns when ctx ends.
	Heartbeat(ctx context.Context, node string, seq uint64) (Answer, error)
}

// Keeper sends this node's heartbeats, and says when the lease is lost and when the
// servers are back.
type Keeper struct {
	Node    string
	Lease   *Lease
	Servers Servers
	// Lost is called, if it is set, each time that the lease is over: the workloads with
	// volumes are to be stopped. why is for people. ctx ends with the keeper.
	Lost func(ctx context.Context, why string)
	// Back is called, if it is set, with the first answer after that, and with the first after
	// the start: what runs here is to be compared with the ledger. With the status down the node's
	// record is to be put again after it. It is called again after an error, with each answer.
	Back func(ctx context.Context, a Answer) error
	Log  hclog.Logger

	answered chan Answer
}

// Bounds of the pauses between heartbeats.
const (
	// firstRetry follows a heartbeat that nobody answered; the pauses double.
	firstRetry = 100 * time.Millisecond
	// leastPatience is how long a heartbeat may at least take.
	leastPatience = time.Second
)

// Run sends heartbeats until ctx ends, and waits for Lost and Back.
func (k *Keeper) Run(ctx context.Context) {
	k.answered = make(chan Answer, 1)
	var loops sync.WaitGroup
	loops.Go(func() { k.beat(ctx) })
	loops.Go(func() { k.follow(ctx) })
	loops.Wait()
}

// beat sends three heartbeats in a heartbeat_ttl, and more where one is not answered.
func (k *Keeper) beat(ctx context.Context) {
	every, pause := Default.HeartbeatTTL/3, time.Duration(0)
	failing := false
	for seq := uint64(1); ; seq++ {
		a, err := k.send(ctx, seq, every)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if failing {
				k.Log.Info("the servers answer this node's heartbeats again")
			}
			failing, every, pause = false, max(MinHeartbeatTTL, a.Liveness.HeartbeatTTL)/3, 0
			k.tellAnswer(a)
		default:
			if !failing {
				k.Log.Warn("no server has answered this node's heartbeat, it is sent again", "error", err)
			}
			failing = true
			pause = min(max(firstRetry, 2*pause), every)
		}
		next := every
		if failing {
			next = pause
		}
		timer := time.NewTimer(jitter(next))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// send sends one heartbeat and renews the lease with its answer. The time is taken before
// it is sent.
func (k *Keeper) send(ctx context.Context, seq uint64, every time.Duration) (Answer, error) {
	bounded, cancel := context.WithTimeout(ctx, max(leastPatience, every/2))
	defer cancel()
	sent := boottime.Now()
	a, err := k.Servers.Heartbeat(bounded, k.Node, seq)
	if err != nil {
		k.Lease.NotGranted(err)
		return a, err
	}
	if a.Status == claim.NodeDown {
		return a, k.Lease.Expire(bounded, "the servers say that this node is down, and have let go of its claims")
	}
	return a, k.Lease.Renew(bounded, sent, a.Liveness)
}

// jitter is up to a tenth less, so that nodes do not beat at once.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(max(1, int64(d)/10)))
}

// tellAnswer gives the newest answer to follow.
func (k *Keeper) tellAnswer(a Answer) {
	select {
	case <-k.answered:
	default:
	}
	k.answered <- a
}

// follow calls Lost and Back, one after the other.
func (k *Keeper) follow(ctx context.Context) {
	var compared uint64 // the lease under which what runs here was compared with the ledger
	for {
		var a Answer
		select {
		case <-ctx.Done():
			return
		case a = <-k.answered:
		case <-k.Lease.Lost():
			if k.Lost != nil {
				k.Lost(ctx, k.Lease.Why())
			}
			select {
			case <-ctx.Done():
				return
			case a = <-k.answered:
			}
		}
		epoch := k.Lease.Epoch()
		if a.Status != claim.NodeDown && epoch == compared || k.Back == nil {
			continue
		}
		err := k.Back(ctx, a)
		switch {
		case err == nil:
			compared = epoch
		case ctx.Err() == nil:
			k.Log.Warn("what runs on this node could not be compared with the ledger, it is tried again with the next heartbeat", "error", err)
		}
	}
}
