package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// GC configures how often the leader collects garbage, and how old it must be.
type GC struct {
	Interval time.Duration
	// Claims is the age after which claims are released whose workload has ended or is not in the ledger.
	Claims time.Duration
	// Drivers is the time after which drivers are deleted that no node has and no volume uses.
	Drivers time.Duration
	// Workloads is the time after its end after which a workload is deleted.
	Workloads time.Duration
	// Nodes is the time after which a node is deleted that is down and holds nothing; 0: never.
	Nodes time.Duration
}

// Garbage is one thing that is not needed any more.
type Garbage struct {
	Kind      Kind
	Namespace string // empty: it has none
	ID        string
	Reason    string
	Since     time.Time

	claim command.Advance
	node  claim.Node
}

// Kind is the kind of a piece of garbage.
type Kind string

// The kinds.
const (
	GarbageClaim    Kind = "claim" // it is released
	GarbageWorkload Kind = "workload"
	GarbageDriver   Kind = "driver"
	GarbageNode     Kind = "node"
	GarbageACLToken Kind = "acl-token"
)

// collect collects garbage at once and then at every interval.
func (w *Watcher) collect(ctx context.Context) {
	tick := time.NewTicker(w.GC.Interval)
	defer tick.Stop()
	for {
		if _, err := w.Collect(ctx, false); err != nil && ctx.Err() == nil {
			w.Log.Warn("garbage collection failed: retrying", "error", err, "in", w.GC.Interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Collect collects garbage once and returns the removed records, or with dryRun the records that would be removed. It
// also releases claims whose workload has ended without the ledger knowing. Garbage that could not be removed because
// of an error is not returned.
func (w *Watcher) Collect(ctx context.Context, dryRun bool) (found []Garbage, err error) {
	now := time.Now()
	err = w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		found, err = w.garbage(ctx, tx, now)
		return err
	})
	if err != nil || dryRun {
		return found, err
	}
	var gone []Garbage
	var errs []error
	for _, clear := range []struct {
		kind Kind
		do   func(ctx context.Context, some []Garbage) (gone []Garbage, err error)
	}{
		{GarbageClaim, w.clearClaims},
		{GarbageWorkload, func(ctx context.Context, some []Garbage) ([]Garbage,
			error,
		) {
			return w.clearWorkloads(ctx, now, some)
		}},
		{GarbageDriver, func(ctx context.Context, some []Garbage) ([]Garbage,
			error,
		) {
			return w.clearDrivers(ctx, now, some)
		}},
		{GarbageNode, w.clearNodes},
		{GarbageACLToken, func(ctx context.Context, some []Garbage) ([]Garbage, error) {
			if _, err := cluster.ExpireACLTokens(ctx, w.Cluster); err != nil {
				return nil, err
			}
			return some, nil
		}},
	} {
		some := slices.DeleteFunc(slices.Clone(found), func(g Garbage) bool { return g.Kind != clear.kind })
		if len(some) == 0 {
			continue
		}
		some, err := clear.do(ctx, some)
		if err != nil {
			errs = append(errs, fmt.Errorf("clear away what is left of each %s: %w", clear.kind, err))
		}
		if len(some) > 0 {
			w.Log.Info("garbage was collected", "kind", clear.kind, "number", len(some))
		}
		gone = append(gone, some...)
	}
	return gone, errors.Join(errs...)
}

// garbage finds everything that is not needed any more, unless ctx ends before.
func (w *Watcher) garbage(ctx context.Context, tx *state.ReadTx, now time.Time) (found []Garbage, err error) {
	for _, find := range []func() ([]Garbage, error){
		func() ([]Garbage, error) { return overdue(ctx, tx, now.Add(-w.GC.Claims)) },
		func() ([]Garbage, error) { return ended(ctx, tx, now.Add(-w.GC.Workloads)) },
		func() ([]Garbage, error) { return unused(tx, now.Add(-w.GC.Drivers)) },
		func() ([]Garbage, error) {
			if w.GC.Nodes == 0 {
				return nil, nil
			}
			return empty(tx, now.Add(-w.GC.Nodes))
		},
		func() ([]Garbage, error) { return expired(tx, now) },
	} {
		some, err := find()
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// ledger is what overdue reads of the ledger.
type ledger interface {
	EachClaim(fn func(claim.Claim) error) error
	Workload(ref claim.WorkloadRef) (claim.Workload, error)
}

// overdue lists the claims taken before a time by a workload that has ended or is not known, and that are not being
// released.
func overdue(ctx context.Context, l ledger, before time.Time) (found []Garbage, err error) {
	err = l.EachClaim(func(c claim.Claim) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.State != claim.Taken || !c.TakenAt.Before(before) {
			return nil
		}
		workload, err := l.Workload(c.Workload)
		if err != nil && !errors.Is(err, claim.ErrWorkloadNotFound) {
			return err
		}
		g := Garbage{
			Kind: GarbageClaim, Namespace: c.Volume.Namespace, ID: c.Volume.ID, Since: c.TakenAt,
			claim: command.Advance{Volume: c.Volume, Workload: c.Workload, Index: c.Index, To: claim.Unpublishing},
		}
		switch {
		case err != nil:
			g.Reason = fmt.Sprintf("its workload %q is not known", c.Workload)
		case workload.Status == claim.Ended:
			g.Reason = fmt.Sprintf("its workload %q has ended", c.Workload)
		default:
			return nil
		}
		found = append(found, g)
		return nil
	})
	return found, err
}

// ended lists the workloads that ended before a time and hold nothing.
func ended(ctx context.Context, tx *state.ReadTx, before time.Time) (found []Garbage, err error) {
	err = tx.EachWorkload(func(one claim.Workload) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if one.Status != claim.Ended || !one.EndedAt.Before(before) {
			return nil
		}
		held, err := tx.ClaimsOf(one.Ref)
		if err == nil && len(held) == 0 {
			found = append(found, Garbage{
				Kind: GarbageWorkload, Namespace: one.Ref.Namespace, ID: one.Ref.ID, Since: one.EndedAt, Reason: "it has ended",
			})
		}
		return err
	})
	return found, err
}

// unused lists the drivers that no node has had since a time and no volume uses.
func unused(tx *state.ReadTx, before time.Time) (found []Garbage, err error) {
	all, err := tx.Drivers()
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		if !d.Unused() || !d.ModifiedAt.Before(before) {
			continue
		}
		volumes, _, err := tx.Volumes(state.VolumeQuery{Driver: d.ID, Page: state.Page{Limit: 1}})
		if err != nil {
			return nil, err
		}
		if len(volumes) == 0 {
			found = append(found, Garbage{
				Kind: GarbageDriver, ID: d.ID, Since: d.ModifiedAt,
				Reason: "no node has it, and no volume names it",
			})
		}
	}
	return found, nil
}

// empty lists the nodes that went down before a time and hold nothing. One that is bound to namespaces stays bound
// however long it is silent: only an operator ends that.
func empty(tx *state.ReadTx, before time.Time) (found []Garbage, err error) {
	all, err := tx.Nodes()
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if n.Status != claim.NodeDown || !n.StatusAt.Before(before) || len(n.Namespaces) > 0 {
			continue
		}
		held, err := tx.ClaimsOn(n.Name)
		if err != nil {
			return nil, err
		}
		if len(held) == 0 {
			found = append(found, Garbage{
				Kind: GarbageNode, ID: n.Name, Since: n.StatusAt,
				Reason: "it is down and holds nothing", node: n,
			})
		}
	}
	return found, nil
}

// expired lists the ACL tokens that have expired.
func expired(tx *state.ReadTx, now time.Time) (found []Garbage, err error) {
	all, err := tx.ACLTokens()
	for _, t := range all {
		if t.Expired(now) {
			found = append(found, Garbage{Kind: GarbageACLToken, ID: t.Accessor, Since: t.ExpiresAt, Reason: "it has expired"})
		}
	}
	return found, err
}

func (w *Watcher) clearClaims(ctx context.Context, some []Garbage) (gone []Garbage, err error) {
	for part := range slices.Chunk(some, command.MaxItems) {
		items := make([]command.Advance, len(part))
		for i, g := range part {
			items[i] = g.claim
		}
		if _, err := cluster.Apply(ctx, w.Cluster, &command.AdvanceClaims{Items: items}); err != nil {
			return gone, err
		}
		gone = append(gone, part...)
	}
	return gone, nil
}

func (w *Watcher) clearWorkloads(ctx context.Context, now time.Time, some []Garbage) ([]Garbage, error) {
	for {
		result, err := cluster.Apply(ctx, w.Cluster, &command.DeleteWorkloads{EndedBefore: now.Add(-w.GC.Workloads)})
		switch {
		case err != nil:
			return nil, err
		case !result.More:
			return some, nil
		}
	}
}

// clearDrivers skips drivers that a node or a volume has started to use since they were read.
func (w *Watcher) clearDrivers(ctx context.Context, now time.Time, some []Garbage) (gone []Garbage, err error) {
	for part := range slices.Chunk(some, command.MaxItems) {
		ids := make([]string, len(part))
		for i, g := range part {
			ids[i] = g.ID
		}
		result, err := cluster.Apply(ctx, w.Cluster,
			&command.DeleteDrivers{IDs: ids, IfUnusedBefore: now.Add(-w.GC.Drivers)})
		if err != nil {
			return gone, err
		}
		for _, g := range part {
			if slices.Contains(result.Deleted, g.ID) {
				gone = append(gone, g)
			}
		}
	}
	return gone, nil
}

// clearNodes skips nodes that have come back since they were read.
func (w *Watcher) clearNodes(ctx context.Context, some []Garbage) (gone []Garbage, err error) {
	var errs []error
	for _, g := range some {
		if err := w.forget(ctx, g.ID); err != nil {
			errs = append(errs, fmt.Errorf("what the node %q has left in Consul: %w", g.ID, err))
			continue
		}
		result, err := cluster.Apply(ctx, w.Cluster, &command.DeleteNode{Name: g.node.Name, IfDown: g.node.StatusIndex})
		if errs = append(errs, err); err == nil && result.Found {
			gone = append(gone, g)
		}
	}
	return gone, errors.Join(errs...)
}

func (w *Watcher) forget(ctx context.Context, node string) error {
	if w.Forget == nil {
		return nil
	}
	return w.Forget(ctx, node)
}

// sweepDelay is how long a node has to revoke the tokens of a workload that has ended, before the leader does. It also
// bounds how often the leader checks for such tokens.
const sweepDelay = 10 * time.Second

// sweepTokens revokes at once, at every interval, and soon after a workload has ended and left tokens. Tokens that
// could not be revoked wait for the next interval.
func (w *Watcher) sweepTokens(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if err := w.SweepTokens(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("not all tokens whose workload is gone could be revoked: retrying", "error", err, "in", w.GC.Interval)
		}
		w.awaitSweep(ctx, began)
	}
}

// awaitSweep waits until the next sweep is due; the last one began at a time.
func (w *Watcher) awaitSweep(ctx context.Context, began time.Time) {
	ctx, cancel := context.WithDeadline(ctx, began.Add(w.GC.Interval))
	defer cancel()
	for {
		select {
		case <-time.After(w.sweepDelay):
		case <-ctx.Done():
			return
		}
		changed := w.Cluster.Watch(ctx, state.TopicWorkloads)
		left, err := w.tokensLeft(ctx, began)
		if err != nil && ctx.Err() == nil {
			w.Log.Error("the tokens of ended workloads cannot be read", "error", err)
		}
		if left {
			return
		}
		<-changed // also when ctx ends
	}
}

// tokensLeft reports whether a workload has left tokens since a time, because it has ended or begun another run.
func (w *Watcher) tokensLeft(ctx context.Context, since time.Time) (left bool, err error) {
	err = w.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		all, err := tx.Tokens("")
		for _, t := range all {
			workload, err := tx.Workload(t.Workload)
			if errors.Is(err, claim.ErrWorkloadNotFound) {
				continue // for a long time already
			}
			if err != nil {
				return err
			}
			at := workload.EndedAt
			if workload.Status == claim.Running {
				at = workload.CreatedAt
			}
			if !t.BelongsTo(workload) && !at.Before(since) {
				left = true
				return nil
			}
		}
		return err
	})
	return left, err
}
