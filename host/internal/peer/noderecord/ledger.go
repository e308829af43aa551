package noderecord

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/sdk/storage"
)

// Cluster is the ledger, of this server or through the leader: a *cluster.Node or a *cluster.Client.
type Cluster interface {
	AwaitWorkload(ctx context.Context, run claim.Run, after []claim.WorkloadRef) (command.AwaitWorkloadResult, error)
	StartWorkload(ctx context.Context, run claim.Run, claims []claim.Claim,
		tokens ...claim.Token) (command.StartWorkloadResult, error)
	EndRun(ctx context.Context, run claim.Run) (command.EndWorkloadResult, error)
	AdvanceClaims(ctx context.Context, by string, items ...command.Advance) (command.AdvanceClaimsResult, error)
	Volume(ctx context.Context, ref claim.VolumeRef, b cluster.Blocking) (claim.Volume, uint64, error)
	Workload(ctx context.Context, ref claim.WorkloadRef, b cluster.Blocking) (claim.Workload, uint64, error)
	ClaimsOf(ctx context.Context, ref claim.WorkloadRef, b cluster.Blocking) ([]claim.Claim, uint64, error)
	OnNode(ctx context.Context, node string, b cluster.Blocking) (command.OnNode, uint64, error)
}

const (
	// longestWait is how long the leader keeps a query that waits for a change, before it has to be sent again.
	longestWait = time.Minute
	// leaderless is the pause if no server leads and the call returns at once.
	leaderless = 500 * time.Millisecond
)

// Ledger is the ledger as a workload sees it. It implements workload.Ledger.
type Ledger struct{ Cluster Cluster }

// Volume reads one volume.
func (l Ledger) Volume(ctx context.Context, ref claim.VolumeRef) (claim.Volume, error) {
	v, _, err := l.Cluster.Volume(ctx, ref, cluster.Blocking{})
	return v, err
}

// Workload reads one workload's record.
func (l Ledger) Workload(ctx context.Context, ref claim.WorkloadRef) (claim.Workload, error) {
	w, _, err := l.Cluster.Workload(ctx, ref, cluster.Blocking{})
	return w, err
}

// AwaitWorkload records that a workload waits on a node for others.
func (l Ledger) AwaitWorkload(ctx context.Context, run claim.Run, after []claim.WorkloadRef) error {
	_, err := l.Cluster.AwaitWorkload(ctx, run, after)
	return err
}

// AwaitEnded waits until nothing is left of a workload.
func (l Ledger) AwaitEnded(ctx context.Context, ref claim.WorkloadRef) error {
	return l.await(ctx, ref, func(held []claim.Claim) (bool, error) {
		if len(held) > 0 {
			return false, nil
		}
		w, err := l.Workload(ctx, ref)
		if errors.Is(err, claim.ErrWorkloadNotFound) {
			return true, nil
		}
		return w.Status == claim.Ended, err
	})
}

// StartWorkload takes all of the claims or none, and records the tokens.
func (l Ledger) StartWorkload(ctx context.Context, run claim.Run, want []claim.Claim,
	tokens []claim.Token,
) (volumesteps.Started, error) {
	result, err := l.Cluster.StartWorkload(ctx, run, want, tokens...)
	return volumesteps.Started{Run: result.Workload.CreateIndex, Claims: result.Claims, Volumes: result.Volumes}, err
}

// EndWorkload marks a run of the workload on a node as ended, and its claims as unpublishing.
func (l Ledger) EndWorkload(ctx context.Context, run claim.Run) error {
	_, err := l.Cluster.EndRun(ctx, run)
	return err
}

// NodeDetached marks claims as node-detached, with their ForcedBy. Those that are gone, or further already, stay as
// they are.
func (l Ledger) NodeDetached(ctx context.Context, claims []claim.Claim) error {
	held := map[claim.WorkloadRef][]claim.Claim{}
	var items []command.Advance
	for _, c := range claims {
		if _, read := held[c.Workload]; !read {
			found, _, err := l.Cluster.ClaimsOf(ctx, c.Workload, cluster.Blocking{})
			if err != nil {
				return err
			}
			held[c.Workload] = found
		}
		for _, is := range held[c.Workload] {
			if same(c, is) && is.State.Before(claim.NodeDetached) {
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
	_, err := l.Cluster.AdvanceClaims(ctx, "", items...)
	return err
}

// AwaitFreed waits until none of these claims exists.
func (l Ledger) AwaitFreed(ctx context.Context, claims []claim.Claim) error {
	for _, c := range claims {
		err := l.await(ctx, c.Workload, func(held []claim.Claim) (bool, error) {
			return !slices.ContainsFunc(held, func(is claim.Claim) bool { return same(c, is) }), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// same reports whether the ledger's claim is the one that is meant.
func same(meant, is claim.Claim) bool {
	return is.Volume == meant.Volume && is.Workload == meant.Workload && is.Node == meant.Node &&
		(meant.Index == 0 || is.Index == meant.Index)
}

// await waits until a condition on a workload's record and its claims is true. It is checked again whenever one of
// them has changed.
func (l Ledger) await(ctx context.Context, ref claim.WorkloadRef, is func(held []claim.Claim) (bool, error)) error {
	var index uint64
	for {
		held, now, err := l.Cluster.ClaimsOf(ctx, ref, cluster.Blocking{MinIndex: index, Wait: longestWait})
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

// ClaimsOf lists a workload's claims.
func (l Ledger) ClaimsOf(ctx context.Context, ref claim.WorkloadRef) ([]claim.Claim, error) {
	held, _, err := l.Cluster.ClaimsOf(ctx, ref, cluster.Blocking{})
	return held, err
}

// OnNode lists the workloads that run or wait on a node according to the ledger, and the claims on that node. A node
// that has not registered yet, or was purged, has none.
func (l Ledger) OnNode(ctx context.Context, node string) ([]claim.Workload, []claim.Claim, error) {
	on, _, err := l.Cluster.OnNode(ctx, node, cluster.Blocking{})
	if errors.Is(err, claim.ErrNodeNotFound) {
		return nil, nil, nil
	}
	return on.Workloads, on.Claims, err
}

// Directory is the nodes in this server's ledger, and the way to their drivers. It implements controllers.Cluster.
type Directory struct {
	Cluster *cluster.Node
	// Calls makes calls to the drivers of a node (peer.Nodes.Storage).
	Calls func(node string) storage.Client
}

// Driver reads a driver with what each node reports of it.
func (d *Directory) Driver(id string) (driver claim.Driver, err error) {
	err = d.read(func(tx *state.ReadTx) error {
		driver, err = tx.Driver(id)
		return err
	})
	return driver, err
}

// Node reads a node's record.
func (d *Directory) Node(name string) (node claim.Node, err error) {
	err = d.read(func(tx *state.ReadTx) error {
		node, err = tx.Node(name)
		return err
	})
	return node, err
}

// read reads this server's ledger without waiting. Only the leader picks controllers, and its ledger is up to date.
func (d *Directory) read(fn func(tx *state.ReadTx) error) error {
	return d.Cluster.Read(context.Background(), fn)
}

// Changed is closed by the next change of the driver's health, and when ctx ends.
func (d *Directory) Changed(ctx context.Context, driver string) <-chan struct{} {
	return d.Cluster.Watch(ctx, state.TopicDriver(driver))
}

// Storage makes calls to the drivers of a node.
func (d *Directory) Storage(node string) storage.Client { return d.Calls(node) }
