package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// ReadLatest is Read on the leader, with all that was acknowledged to anyone before it was
// called. Errors: ErrNotLeader, and those of ctx and of fn.
func (n *Node) ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error {
	if err := n.verifyLeader(ctx); err != nil {
		return err
	}
	return n.store.View(fn)
}

// Age is how old what Read sees may be: the time since this server heard from the
// leader; 0 on the leader itself, negative where it never has.
func (n *Node) Age() time.Duration { return n.raft.SinceContact() }

// verifyLeader makes sure that no other server has led since before it was called, and that
// this one's ledger has all that was agreed on under the leaders before it.
func (n *Node) verifyLeader(ctx context.Context) error {
	term := n.leadership.since()
	if term == 0 {
		return command.ErrNotLeader
	}
	if err := n.verifying.join(ctx, n.verify); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n.running.Err() != nil {
			return command.ErrClosed
		}
		return command.ErrNotLeader
	}
	// It may have lost the lead and led again: then its ledger may not have caught up yet.
	if n.raft.CurrentTerm() != term {
		return command.ErrNotLeader
	}
	return nil
}

// verify asks the other servers. Raft does not answer what it still holds when it is shut
// down, so that Close waits for it.
func (n *Node) verify() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return command.ErrClosed
	}
	n.inFlight.Add(1)
	n.mu.Unlock()
	defer n.inFlight.Done()
	return n.raft.VerifyLeader().Error()
}

// verifier lets many readers share one round of messages to the other servers: all that
// came before it begins.
type verifier struct {
	mu      sync.Mutex
	next    *round
	running sync.Mutex // one round at a time
}

type round struct {
	done chan struct{}
	err  error
}

// join waits for a round that begins after it was called.
func (v *verifier) join(ctx context.Context, verify func() error) error {
	v.mu.Lock()
	r := v.next
	if r == nil {
		r = &round{done: make(chan struct{})}
		v.next = r
		go v.run(r, verify)
	}
	v.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (v *verifier) run(r *round, verify func() error) {
	v.running.Lock()
	defer v.running.Unlock()
	v.mu.Lock()
	v.next = nil
	v.mu.Unlock()
	r.err = verify()
	close(r.done)
}
