package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// Identity is the cluster's: an id that no other cluster has, given once.
func (n *Node) Identity(ctx context.Context) (claim.Cluster, error) {
	var standing claim.Cluster
	var found bool
	err := n.Read(ctx, func(tx *state.ReadTx) (err error) {
		standing, found, err = tx.Cluster()
		return err
	})
	if err != nil || found {
		return standing, err
	}
	result, err := apply[command.IdentifyResult](ctx, n, &command.Identify{Cluster: claim.Cluster{ID: rand.Text()}})
	return result.Cluster, err
}

// apply puts a command into the log and waits for its result. Commands of many
// callers share one write of the log and one transaction.
func (n *Node) apply(ctx context.Context, c command.Command) (any, error) {
	if err := errors.Join(context.Cause(ctx), n.WaitReady(ctx)); err != nil {
		return nil, err
	}
	if err := needSpace(n.dir, spaceFor(c)); err != nil {
		return nil, err
	}
	command.SetAt(c, n.now().UTC())
	entry, err := command.Encode(c)
	if err != nil {
		return nil, err
	}
	outcome, err := n.submit(ctx, entry)
	if err != nil {
		return nil, err
	}
	return outcome.Result, outcome.Err
}

// submit gives an entry to raft and waits for its outcome, or for ctx: raft
// cannot be told to give up.
func (n *Node) submit(ctx context.Context, entry []byte) (state.Outcome, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return state.Outcome{}, ErrClosed
	}
	n.inFlight.Add(1)
	n.mu.Unlock()
	type answer struct {
		outcome state.Outcome
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		defer n.inFlight.Done()
		future := n.raft.Apply(entry, 0)
		if err := future.Error(); err != nil {
			answers <- answer{err: raftError(err)}
			return
		}
		outcome, ok := future.Response().(state.Outcome)
		if !ok {
			outcome.Err = fmt.Errorf("raft answered %T", future.Response())
		}
		answers <- answer{outcome: outcome}
	}()
	select {
	case a := <-answers:
		return a.outcome, a.err
	case <-ctx.Done():
		return state.Outcome{}, fmt.Errorf("%w: %w", ErrUncertain, context.Cause(ctx))
	}
}

func raftError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return ErrNotLeader
	case errors.Is(err, raft.ErrRaftShutdown):
		return ErrClosed
	default:
		// Leadership lost, or the log could not be written: raft may have stored it.
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
}
