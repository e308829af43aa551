package cluster

import (
	"context"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// ReadChanged is ReadLatest when one of the topics has changed after the index, or the wait is
// over. fn reads what depends on the topics only. The answer's index is for the next read.
func (n *Node) ReadChanged(ctx context.Context, b Blocking, topics []state.Topic, fn func(tx *state.ReadTx) error) (index uint64, err error) {
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

// ReadHere is ReadChanged of this server's ledger as it is, leader or not: Age says how old
// that may be. After a start it waits until the server has caught up with the one that leads;
// while nobody does, what is here is all that there is to know.
func (n *Node) ReadHere(ctx context.Context, b Blocking, topics []state.Topic, fn func(tx *state.ReadTx) error) (index uint64, err error) {
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
		<-changed // also when waiting ends, and when the node is closed
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
