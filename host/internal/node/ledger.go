package node

import (
	"context"
	"errors"
	"slices"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/workload"
)

// Ledger is the cluster as a workload sees it. It implements workload.Ledger.
type Ledger struct{ Cluster *cluster.Node }

// Volume reads one volume.
func (l Ledger) Volume(ctx context.Context, ref claim.VolumeRef) (v claim.Volume, err error) {
	err = l.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		v, err = tx.Volume(ref)
		return err
	})
	return v, err
}

// Workload reads one workload's record.
func (l Ledger) Workload(ctx context.Context, ref claim.WorkloadRef) (w claim.Workload, err error) {
	err = l.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		w, err = tx.Workload(ref)
		return err
	})
	return w, err
}

// AwaitWorkload records that a workload waits on a node for others.
func (l Ledger) AwaitWorkload(ctx context.Context, ref claim.WorkloadRef, node string, after []claim.WorkloadRef) error {
	_, err := l.Cluster.AwaitWorkload(ctx, ref, node, after)
	return err
}

// AwaitEnded waits until nothing is left of a workload.
func (l Ledger) AwaitEnded(ctx context.Context, ref claim.WorkloadRef) error {
	return l.await(ctx, ref, func(tx *state.ReadTx) (bool, error) {
		w, err := tx.Workload(ref)
		switch {
		case err == nil && w.Status != claim.Ended:
			return false, nil
		case err != nil && !errors.Is(err, claim.ErrWorkloadNotFound):
			return false, err
		}
		held, err := tx.ClaimsOf(ref)
		return len(held) == 0, err
	})
}

// StartWorkload takes all of the claims or none, and notes the tokens.
func (l Ledger) StartWorkload(ctx context.Context, ref claim.WorkloadRef, node string, want []claim.Claim, tokens []claim.Token) (workload.Started, error) {
	result, err := l.Cluster.StartWorkload(ctx, ref, node, want, tokens...)
	return workload.Started{Run: result.Workload.CreateIndex, Claims: result.Claims, Volumes: result.Volumes}, err
}

// EndWorkload marks a run of the workload on a node as ended, and its claims as
// unpublishing.
func (l Ledger) EndWorkload(ctx context.Context, ref claim.WorkloadRef, node string, run uint64) error {
	_, err := l.Cluster.EndRun(ctx, ref, node, run)
	return err
}

// NodeDetached checkpoints claims. Those that are gone, or further already, stay as they
// are.
func (l Ledger) NodeDetached(ctx context.Context, claims []claim.Claim) error {
	var standing []claim.Claim
	err := l.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		standing, err = stand(tx, claims)
		return err
	})
	if err != nil {
		return err
	}
	var items []command.Advance
	for _, c := range standing {
		if c.State.Before(claim.NodeDetached) {
			items = append(items, command.Advance{Volume: c.Volume, Workload: c.Workload, Index: c.Index, To: claim.NodeDetached})
		}
	}
	if len(items) == 0 {
		return nil
	}
	_, err = l.Cluster.AdvanceClaims(ctx, "", items...)
	return err
}

// AwaitFreed waits until none of these claims is there.
func (l Ledger) AwaitFreed(ctx context.Context, claims []claim.Claim) error {
	for _, c := range claims {
		err := l.await(ctx, c.Workload, func(tx *state.ReadTx) (bool, error) {
			held, err := stand(tx, []claim.Claim{c})
			return len(held) == 0, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stand are those of the claims that the ledger has, as it has them.
func stand(tx *state.ReadTx, claims []claim.Claim) (standing []claim.Claim, err error) {
	for _, c := range claims {
		is, err := tx.Claim(c.Volume, c.Workload)
		if errors.Is(err, claim.ErrClaimNotFound) || err == nil && (is.Node != c.Node || c.Index != 0 && is.Index != c.Index) {
			continue
		}
		if err != nil {
			return nil, err
		}
		standing = append(standing, is)
	}
	return standing, nil
}

// await waits until something is so that the records of a workload decide.
func (l Ledger) await(ctx context.Context, ref claim.WorkloadRef, is func(tx *state.ReadTx) (bool, error)) error {
	for {
		watching, cancel := context.WithCancel(ctx)
		changed := l.Cluster.Watch(watching, state.TopicWorkload(ref))
		over := false
		err := l.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
			over, err = is(tx)
			return err
		})
		if err != nil || over {
			cancel()
			return err
		}
		<-changed // also when ctx ends, or the cluster is closed
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// ClaimsOf lists a workload's claims.
func (l Ledger) ClaimsOf(ctx context.Context, ref claim.WorkloadRef) (held []claim.Claim, err error) {
	err = l.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		held, err = tx.ClaimsOf(ref)
		return err
	})
	return held, err
}

// OnNode lists the workloads that run or wait on a node, as far as the ledger knows, and
// the claims on that node.
func (l Ledger) OnNode(ctx context.Context, node string) (on []claim.Workload, claims []claim.Claim, err error) {
	err = l.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		if claims, err = tx.ClaimsOn(node); err != nil {
			return err
		}
		on, _, err = tx.Workloads("", state.Page{})
		on = slices.DeleteFunc(on, func(w claim.Workload) bool { return w.Node != node || w.Status == claim.Ended })
		return err
	})
	return on, claims, err
}
