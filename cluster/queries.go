package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// maxWait bounds how long a query may wait.
const maxWait = 10 * time.Minute

// Ask answers a query here if this node leads, and otherwise sends it to the leader (Ledger).
func (n *Node) Ask(ctx context.Context, q command.Query) (any, uint64, error) {
	if n.remote == nil {
		if err := n.WaitReady(ctx); err != nil {
			return nil, 0, err
		}
		return n.AskHere(ctx, q)
	}
	answer, index, err := n.AskHere(ctx, q)
	if !errors.Is(err, command.ErrNotLeader) || ctx.Err() != nil {
		return answer, index, err
	}
	return n.remote.Ask(ctx, q)
}

// AskHere answers a query from this server's ledger, once it is due, if this server leads. After ErrNotLeader and
// ErrClosed the query may be repeated.
func (n *Node) AskHere(ctx context.Context, q command.Query) (any, uint64, error) {
	b := q.Blocks()
	if b.Wait > 0 && b.MinIndex > 0 {
		if err := n.waitChange(ctx, b, state.Topics(q)); err != nil {
			return nil, 0, err
		}
	}
	if err := n.verifyLeader(ctx); err != nil {
		return nil, 0, err
	}
	return n.store.Answer(q)
}

// waitChange waits for a change as the query asks for, while this node leads.
func (n *Node) waitChange(ctx context.Context, b Blocking, topics []state.Topic) error {
	leading, _ := n.leadership.get()
	if leading == nil {
		return command.ErrNotLeader
	}
	waiting, cancel := context.WithTimeout(ctx, min(b.Wait, maxWait))
	defer cancel()
	for {
		changed := n.store.Watch(waiting, topics...)
		if n.store.ChangedAt(topics...) > b.MinIndex {
			return nil
		}
		select {
		case <-changed:
		case <-leading.Done():
			return command.ErrNotLeader
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if waiting.Err() != nil {
			return nil
		}
		if err := n.store.Err(); errors.Is(err, command.ErrClosed) {
			return err
		}
	}
}

// ReadChanged is ReadLatest once one of the topics has changed after the index, or the wait has passed. What fn
// reads may depend on the topics only. index is the MinIndex of the next read.
func (n *Node) ReadChanged(ctx context.Context, b Blocking, topics []state.Topic,
	fn func(tx *state.ReadTx) error,
) (index uint64, err error) {
	if b.Wait > 0 && b.MinIndex > 0 {
		if err := n.waitChange(ctx, b, topics); err != nil {
			return 0, err
		}
	}
	if err := n.verifyLeader(ctx); err != nil {
		return 0, err
	}
	index = n.store.ChangedAt(topics...)
	return index, n.store.View(fn)
}

// ReadHere is ReadChanged of this server's ledger, whether or not it leads: Age bounds how stale that may be. After a
// start it waits until the server has caught up with the leader; while there is no leader, it reads what there is.
func (n *Node) ReadHere(ctx context.Context, b Blocking, topics []state.Topic,
	fn func(tx *state.ReadTx) error,
) (index uint64, err error) {
	if n.Stats().LeaderName != "" {
		if err := n.WaitReady(ctx); err != nil {
			return 0, err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, min(b.Wait, maxWait))
	defer cancel()
	for b.MinIndex > 0 {
		changed := n.store.Watch(waiting, topics...)
		if n.store.ChangedAt(topics...) > b.MinIndex || waiting.Err() != nil {
			break
		}
		<-changed // closed, too, when waiting ends and when the node is closed
		if n.running.Err() != nil {
			return 0, command.ErrClosed
		}
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	index = n.store.ChangedAt(topics...)
	return index, n.store.View(fn)
}

// ReadLatest is Read on the leader: it includes everything that was acknowledged to anyone before the call. Errors:
// ErrNotLeader, and the errors of ctx and fn.
func (n *Node) ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error {
	if err := n.verifyLeader(ctx); err != nil {
		return err
	}
	return n.store.View(fn)
}

// Age returns how stale the result of Read may be: the time since this server heard from the leader; 0 on the
// leader itself, negative if it never has.
func (n *Node) Age() time.Duration { return n.raft.SinceContact() }

// verifyLeader makes sure that no other server has led since before the call, and that this server's ledger has
// everything that was agreed on under earlier leaders.
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
	// It may have lost the lead and regained it: then its ledger may not have caught up yet.
	if n.raft.CurrentTerm() != term {
		return command.ErrNotLeader
	}
	return nil
}

// verify asks the other servers. Close waits for it.
func (n *Node) verify() error {
	leading, _ := n.leadership.get()
	if leading == nil {
		return command.ErrNotLeader
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return command.ErrClosed
	}
	n.inFlight.Add(1)
	n.mu.Unlock()
	defer n.inFlight.Done()
	term, _ := leading.Value(termKey{}).(uint64)
	return n.raft.ConfirmLeader(leading, term)
}

// verifier lets concurrent readers share one round of messages to the other servers: all that arrived before the
// round begins.
type verifier struct {
	mu      sync.Mutex
	next    *round
	running sync.Mutex // one round at a time
}

type round struct {
	done chan struct{}
	err  error
}

// join waits for a round that begins after the call.
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
