package node

import (
	"context"
	"slices"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
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

// StartWorkload takes all of the claims or none, and notes the tokens.
func (l Ledger) StartWorkload(ctx context.Context, ref claim.WorkloadRef, node string, want []claim.Claim, tokens []claim.Token) ([]claim.Claim, []claim.Volume, error) {
	result, err := l.Cluster.StartWorkload(ctx, ref, node, want, tokens...)
	return result.Claims, result.Volumes, err
}

// EndWorkload marks the workload as ended and its claims as unpublishing.
func (l Ledger) EndWorkload(ctx context.Context, ref claim.WorkloadRef) error {
	_, err := l.Cluster.EndWorkload(ctx, ref)
	return err
}

// NodeDetached checkpoints the claims of the workload on these volumes. Those
// that are gone, or further already, stay as they are.
func (l Ledger) NodeDetached(ctx context.Context, ref claim.WorkloadRef, volumes []claim.VolumeRef) error {
	held, err := l.held(ctx, ref, volumes)
	if err != nil {
		return err
	}
	var items []command.Advance
	for _, c := range held {
		if c.State.Before(claim.NodeDetached) {
			items = append(items, command.Advance{Volume: c.Volume, Workload: ref, Index: c.Index, To: claim.NodeDetached})
		}
	}
	if len(items) == 0 {
		return nil
	}
	_, err = l.Cluster.AdvanceClaims(ctx, "", items...)
	return err
}

// AwaitFreed waits until the workload has no claim on these volumes.
func (l Ledger) AwaitFreed(ctx context.Context, ref claim.WorkloadRef, volumes []claim.VolumeRef) error {
	for {
		watching, cancel := context.WithCancel(ctx)
		changed := l.Cluster.Watch(watching, state.TopicWorkload(ref))
		held, err := l.held(ctx, ref, volumes)
		if err != nil || len(held) == 0 {
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

// held are the workload's claims on these volumes.
func (l Ledger) held(ctx context.Context, ref claim.WorkloadRef, volumes []claim.VolumeRef) (held []claim.Claim, err error) {
	err = l.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		held, err = tx.ClaimsOf(ref)
		return err
	})
	return slices.DeleteFunc(held, func(c claim.Claim) bool { return !slices.Contains(volumes, c.Volume) }), err
}

// OnNode lists the workloads that the ledger believes to run on a node, and the
// claims on that node.
func (l Ledger) OnNode(ctx context.Context, node string) (refs []claim.WorkloadRef, claims []claim.Claim, err error) {
	err = l.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		if claims, err = tx.ClaimsOn(node); err != nil {
			return err
		}
		all, _, err := tx.Workloads("", state.Page{})
		for _, w := range all {
			if w.Node == node && w.Status == claim.Running {
				refs = append(refs, w.Ref)
			}
		}
		return err
	})
	return refs, claims, err
}
