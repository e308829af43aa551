package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	"go.opentelemetry.io/otel/trace"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// Identity returns the cluster's unique id, which is set once.
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
	return Apply(ctx, n, &command.Identify{Cluster: claim.Cluster{ID: rand.Text()}})
}

// Apply sends a command to the leader, this server or another (Ledger). A command that may be sent several times has a
// key, so that it is applied once. The leader's own decisions are not sent to another server: its successor may have
// promised the opposite.
func (n *Node) Apply(ctx context.Context, c command.Command) (any, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if term, decides := ctx.Value(termKey{}).(uint64); decides {
		command.SetTerm(c, term)
		return n.ApplyHere(ctx, c)
	}
	if n.remote == nil {
		if err := n.WaitReady(ctx); err != nil {
			return nil, err
		}
		return n.ApplyHere(ctx, c)
	}
	if err := SetKey(ctx, c); err != nil {
		return nil, err
	}
	if n.Leader() {
		result, err := n.ApplyHere(ctx, c)
		moved := errors.Is(err, command.ErrNotLeader) || errors.Is(err, command.ErrUncertain)
		if !moved || ctx.Err() != nil {
			return result, err
		}
	}
	return n.remote.Apply(ctx, c)
}

// ApplyHere puts a command into this server's log, with this server's time, if this server leads, and waits for its
// result. It shares writes of the log and transactions with other callers. After ErrNotLeader, ErrUncertain and
// ErrClosed the command may be repeated.
func (n *Node) ApplyHere(ctx context.Context, c command.Command) (any, error) {
	resigned := n.resigned.Wait()
	if !n.Leader() {
		if n.running.Err() != nil {
			return nil, command.ErrClosed
		}
		return nil, command.ErrNotLeader
	}
	if err := needSpace(n.dir, spaceFor(c)); err != nil {
		return nil, err
	}
	command.SetAt(c, n.now().UTC())
	entry, err := command.Encode(c)
	if err != nil {
		return nil, err
	}
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/pannier/pannier/cluster").
		Start(ctx, "raft apply")
	defer span.End()
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, command.ErrClosed
	}
	n.inFlight.Add(1)
	n.mu.Unlock()
	done := make(chan state.Outcome, 1)
	go func() {
		defer n.inFlight.Done()
		done <- outcomeOf(n.raft.Apply(entry, 0))
	}()
	select {
	case outcome := <-done:
		return outcome.Result, outcome.Err
	case <-resigned: // raft answers once the disk does
		return nil, fmt.Errorf("%w: %w", command.ErrUncertain, command.ErrDiskHangs)
	case <-ctx.Done(): // raft cannot cancel an entry
		return nil, fmt.Errorf("%w: %w", command.ErrUncertain, context.Cause(ctx))
	}
}

// outcomeOf waits until raft has finished an entry.
func outcomeOf(future raft.ApplyFuture) state.Outcome {
	if err := future.Error(); err != nil {
		return state.Outcome{Err: raftError(err)}
	}
	outcome, ok := future.Response().(state.Outcome)
	if !ok {
		outcome.Err = fmt.Errorf("raft answered %T", future.Response())
	}
	return outcome
}

func raftError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return command.ErrNotLeader
	case errors.Is(err, raft.ErrRaftShutdown):
		return command.ErrClosed
	default:
		// Leadership lost, or the log could not be written: raft may have stored it.
		return fmt.Errorf("%w: %w", command.ErrUncertain, err)
	}
}
