package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// RegisterVolume inserts a volume or updates its definition. Errors: ErrInvalid;
// ErrVolumeInUse where claims stand that the new definition does not fit.
func (n *Node) RegisterVolume(ctx context.Context, v claim.Volume) (command.RegisterVolumeResult, error) {
	return apply[command.RegisterVolumeResult](ctx, n, &command.RegisterVolume{Volume: v})
}

// DeregisterVolume removes a volume. Errors: ErrVolumeNotFound; ErrVolumeInUse while
// claims stand. With force these are deleted, wherever their mounts are, and
// returned.
func (n *Node) DeregisterVolume(ctx context.Context, ref claim.VolumeRef, force bool) (command.DeregisterVolumeResult, error) {
	var left []claim.Claim
	for {
		result, err := apply[command.DeregisterVolumeResult](ctx, n, &command.DeregisterVolume{Ref: ref, Force: force})
		left = append(left, result.LeftBehind...)
		if err != nil || !result.More {
			result.LeftBehind = left
			return result, err
		}
	}
}

// StartWorkload records that a workload runs on a node, takes all the claims that
// it wants, or none, and notes the tokens that Consul will be asked for. It may be
// repeated with the same arguments. Claims need Volume, Mode, AccessMode and
// AttachmentMode, tokens need ID, Service and Consul; the rest is filled in. Tokens of a
// run before stay noted until they are deleted, and their ids cannot be used again. Errors:
// ErrHeld, ErrModes, ErrReadOnly, ErrUnsupported, ErrVolumeNotFound; ErrConflict where
// it runs already with other arguments, or a token's id is taken; ErrInvalid.
func (n *Node) StartWorkload(ctx context.Context, ref claim.WorkloadRef, node string, claims []claim.Claim, tokens ...claim.Token) (command.StartWorkloadResult, error) {
	return apply[command.StartWorkloadResult](ctx, n, &command.StartWorkload{Ref: ref, Node: node, Claims: claims, Tokens: tokens})
}

// EndWorkload records that a workload has ended and sends its claims on their way
// out. It may be repeated; a workload that the ledger does not know is no
// error.
func (n *Node) EndWorkload(ctx context.Context, ref claim.WorkloadRef) (command.EndWorkloadResult, error) {
	return apply[command.EndWorkloadResult](ctx, n, &command.EndWorkload{Ref: ref})
}

// AdvanceClaims checkpoints claims on their way out, all items or none, at most
// command.MaxItems. by is the operator who vouches that the claims' node is
// down; empty where nobody had to. What was freed before counts as done.
// Errors: ErrBackwards, ErrInvalid.
func (n *Node) AdvanceClaims(ctx context.Context, by string, items ...command.Advance) (command.AdvanceClaimsResult, error) {
	return apply[command.AdvanceClaimsResult](ctx, n, &command.AdvanceClaims{Items: items, By: by})
}

// PutNode records what a node says of itself and its drivers. Errors: ErrInvalid.
func (n *Node) PutNode(ctx context.Context, node claim.Node) (command.PutNodeResult, error) {
	return apply[command.PutNodeResult](ctx, n, &command.PutNode{Node: node})
}

// DeleteNode removes a node's record; its claims stay. An unknown node is no error.
func (n *Node) DeleteNode(ctx context.Context, name string) (command.DeleteNodeResult, error) {
	return apply[command.DeleteNodeResult](ctx, n, &command.DeleteNode{Name: name})
}

// DeleteDrivers removes those of the drivers (at most command.MaxItems) that no
// node has, no volume names, and nothing has changed since unusedBefore.
func (n *Node) DeleteDrivers(ctx context.Context, unusedBefore time.Time, ids ...string) (command.DeleteDriversResult, error) {
	return apply[command.DeleteDriversResult](ctx, n, &command.DeleteDrivers{IDs: ids, IfUnusedBefore: unusedBefore})
}

// DeleteWorkloads removes workloads that ended before a time and have no claim
// left, the oldest command.MaxItems of them.
func (n *Node) DeleteWorkloads(ctx context.Context, endedBefore time.Time) (command.DeleteWorkloadsResult, error) {
	return apply[command.DeleteWorkloadsResult](ctx, n, &command.DeleteWorkloads{EndedBefore: endedBefore})
}

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

// PutToken notes that Consul will be asked for a token or, of one that stands, its
// accessor and when it ends. It may be repeated. Errors: ErrNotRunning where the token
// is new and its workload does not run on its node; ErrConflict where the id is
// another token's; ErrInvalid.
func (n *Node) PutToken(ctx context.Context, t claim.Token) (command.PutTokenResult, error) {
	return apply[command.PutTokenResult](ctx, n, &command.PutToken{Token: t})
}

// DeleteTokens forgets tokens that Consul does not have any more, at most
// command.MaxItems. Unknown ones are no error.
func (n *Node) DeleteTokens(ctx context.Context, ids ...string) (command.DeleteTokensResult, error) {
	return apply[command.DeleteTokensResult](ctx, n, &command.DeleteTokens{IDs: ids})
}

// PutSigningKey gives the cluster its signing key and returns the one that stands: the
// first that it was given. Errors: ErrInvalid.
func (n *Node) PutSigningKey(ctx context.Context, k claim.SigningKey) (claim.SigningKey, error) {
	result, err := apply[command.PutSigningKeyResult](ctx, n, &command.PutSigningKey{Key: k})
	return result.Key, err
}

// apply puts a command into the log and waits for its result. Commands of many
// callers share one write of the log and one transaction.
func apply[R any](ctx context.Context, n *Node, c command.Command) (result R, err error) {
	if err := errors.Join(context.Cause(ctx), n.WaitReady(ctx)); err != nil {
		return result, err
	}
	if err := needSpace(n.dir, spaceFor(c)); err != nil {
		return result, err
	}
	command.SetAt(c, n.now().UTC())
	entry, err := command.Encode(c)
	if err != nil {
		return result, err
	}
	outcome, err := n.submit(ctx, entry)
	if err != nil {
		return result, err
	}
	if outcome.Err != nil {
		return result, outcome.Err
	}
	result, ok := outcome.Result.(R)
	if !ok {
		return result, fmt.Errorf("%T has the result %T, not %T", c, outcome.Result, result)
	}
	return result, nil
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
