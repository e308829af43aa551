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

// apply brings a command to the server that leads, this one or another. On its way over several
// it has a key, so that it is applied once however often it is sent.
func (n *Node) apply(ctx context.Context, c command.Command) (any, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if n.remote == nil {
		if err := n.WaitReady(ctx); err != nil {
			return nil, err
		}
		return n.execute(ctx, c)
	}
	command.SetKey(c, rand.Text())
	if n.Leader() {
		result, err := n.execute(ctx, c)
		moved := errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUncertain)
		if !moved || ctx.Err() != nil {
			return result, err
		}
	}
	return forward(ctx, n.remote, c)
}

// ApplyEntry applies a command that another agent encoded, with this server's time, and
// encodes what became of it. It is for the leader: an error is not the command's but of
// the way there (ErrNotLeader, ErrUncertain, ErrClosed), and the command may be sent again.
func (n *Node) ApplyEntry(ctx context.Context, entry []byte) (outcome []byte, err error) {
	c, err := command.Decode(entry)
	if err != nil {
		return command.EncodeOutcome(nil, err)
	}
	if !n.Leader() {
		return nil, ErrNotLeader
	}
	result, err := n.execute(ctx, c)
	if errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUncertain) || errors.Is(err, ErrClosed) {
		return nil, err
	}
	return command.EncodeOutcome(result, err)
}

// execute puts a command into this server's log and waits for its result. Commands of
// many callers share one write of the log and one transaction.
func (n *Node) execute(ctx context.Context, c command.Command) (any, error) {
	if err := needSpace(n.dir, spaceFor(c)); err != nil {
		return nil, err
	}
	if err := n.knownToAll(c); err != nil {
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
