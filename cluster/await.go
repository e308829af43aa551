package cluster

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// OnNode returns the workloads that run or wait on a node, and the claims there. A node that has not registered yet, or
// was purged, has none.
func OnNode(ctx context.Context, l Ledger, node string) (command.OnNode, error) {
	on, _, err := Ask(ctx, l, &command.QueryOnNode{Node: node}, Blocking{})
	if errors.Is(err, claim.ErrNodeNotFound) {
		return command.OnNode{}, nil
	}
	return on, err
}

// NodeDetached records that nothing of these claims' volumes is mounted for their workloads any more, with the claims'
// ForcedBy; the leader does the rest of the release. Workload, Volume, Node and Index select the claims; Index 0
// selects any claim of that workload on that volume and node. A claim that is gone, or further already, stays as it is.
func NodeDetached(ctx context.Context, l Ledger, claims []claim.Claim) error {
	held := map[claim.WorkloadRef][]claim.Claim{}
	var items []command.Advance
	for _, c := range claims {
		if _, read := held[c.Workload]; !read {
			found, _, err := Ask(ctx, l, &command.QueryClaims{Workload: c.Workload}, Blocking{})
			if err != nil {
				return err
			}
			held[c.Workload] = found
		}
		for _, is := range held[c.Workload] {
			if selects(c, is) && is.State.Before(claim.NodeDetached) {
				items = append(items, command.Advance{
					Volume: is.Volume, Workload: is.Workload, Index: is.Index,
					To: claim.NodeDetached, ForcedBy: c.ForcedBy,
				})
			}
		}
	}
	if len(items) == 0 {
		return nil
	}
	_, err := Apply(ctx, l, &command.AdvanceClaims{Items: items})
	return err
}

// AwaitFreed waits until none of a workload's claims exists that NodeDetached would select.
func AwaitFreed(ctx context.Context, l Ledger, ref claim.WorkloadRef, claims []claim.Claim) error {
	return await(ctx, l, ref, func(held []claim.Claim) (bool, error) {
		return !slices.ContainsFunc(held, func(is claim.Claim) bool {
			return slices.ContainsFunc(claims, func(c claim.Claim) bool { return selects(c, is) })
		}), nil
	})
}

// AwaitEnded waits until nothing is left of a workload, on whichever node: it has ended or is unknown, and has no
// claims.
func AwaitEnded(ctx context.Context, l Ledger, ref claim.WorkloadRef) error {
	return await(ctx, l, ref, func(held []claim.Claim) (bool, error) {
		if len(held) > 0 {
			return false, nil
		}
		w, _, err := Ask(ctx, l, &command.QueryWorkload{Ref: ref}, Blocking{})
		if errors.Is(err, claim.ErrWorkloadNotFound) {
			return true, nil
		}
		return w.Status == claim.Ended, err
	})
}

// selects reports whether the ledger's claim is the one that is meant.
func selects(meant, is claim.Claim) bool {
	return is.Volume == meant.Volume && is.Workload == meant.Workload && is.Node == meant.Node &&
		(meant.Index == 0 || is.Index == meant.Index)
}

const (
	// longestWait is how long the leader keeps a query that waits for a change, before it has to be sent again.
	longestWait = time.Minute
	// leaderless is the pause if no server leads and the call returns at once.
	leaderless = 500 * time.Millisecond
)

// await waits until a condition on a workload's record and its claims is true. It is checked again whenever one of
// them has changed.
func await(ctx context.Context, l Ledger, ref claim.WorkloadRef, is func(held []claim.Claim) (bool, error)) error {
	var index uint64
	for {
		held, now, err := Ask(ctx, l, &command.QueryClaims{Workload: ref}, Blocking{MinIndex: index, Wait: longestWait})
		over := false
		if err == nil {
			over, err = is(held)
		}
		switch {
		case over:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, command.ErrNotLeader):
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(leaderless):
			}
		case err != nil:
			return err
		default:
			index = max(now, 1)
		}
	}
}
