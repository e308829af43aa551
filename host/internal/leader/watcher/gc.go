package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// GC says how often the leader clears up, and what is old enough for it.
type GC struct {
	Interval time.Duration
	// Claims of a workload that has ended, or that the ledger does not know, are
	// released when they are older.
	Claims time.Duration
	// Drivers that no node has and no volume names are forgotten when they are older.
	Drivers time.Duration
	// Workloads that ended are forgotten when that is longer ago.
	Workloads time.Duration
	// Nodes that are down and hold nothing are forgotten when they went down longer
	// ago; 0: never.
	Nodes time.Duration
}

// Garbage is one thing that nothing needs any more.
type Garbage struct {
	Kind      Kind
	Namespace string // empty: it has none
	ID        string
	Reason    string
	Since     time.Time

	claim command.Advance
	node  claim.Node
}

// Kind is what a piece of garbage is.
type Kind string

// The kinds.
const (
	GarbageClaim    Kind = "claim" // it is released
	GarbageWorkload Kind = "workload"
	GarbageDriver   Kind = "driver"
	GarbageNode     Kind = "node"
	GarbageACLToken Kind = "acl-token"
)

// collect clears up at once and then every interval.
func (w *Watcher) collect(ctx context.Context) {
	tick := time.NewTicker(w.GC.Interval)
	defer tick.Stop()
	for {
		if _, err := w.Collect(ctx, false); err != nil && ctx.Err() == nil {
			w.Log.Warn("clearing up failed, it is tried again", "error", err, "in", w.GC.Interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Collect clears up once and tells what went, or with dryRun what would go. It is the
// second chance of a claim whose workload has ended in a way that nobody told the ledger of.
// What an error kept from going is not told.
func (w *Watcher) Collect(ctx context.Context, dryRun bool) (found []Garbage, err error) {
	now := time.Now()
	err = w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		found, err = w.garbage(tx, now)
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
		{GarbageWorkload, func(ctx context.Context, some []Garbage) ([]Garbage, error) { return w.clearWorkloads(ctx, now, some) }},
		{GarbageDriver, func(ctx context.Context, some []Garbage) ([]Garbage, error) { return w.clearDrivers(ctx, now, some) }},
		{GarbageNode, w.clearNodes},
		{GarbageACLToken, func(ctx context.Context, some []Garbage) ([]Garbage, error) {
			if _, err := w.Cluster.ExpireACLTokens(ctx); err != nil {
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
			w.Log.Info("cleared away what nothing needs any more", "kind", clear.kind, "number", len(some))
		}
		gone = append(gone, some...)
	}
	return gone, errors.Join(errs...)
}

// garbage finds all that nothing needs any more.
func (w *Watcher) garbage(tx *state.ReadTx, now time.Time) (found []Garbage, err error) {
	for _, find := range []func() ([]Garbage, error){
		func() ([]Garbage, error) { return overdue(tx, now.Add(-w.GC.Claims)) },
		func() ([]Garbage, error) { return ended(tx, now.Add(-w.GC.Workloads)) },
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

// ledger is what overdue reads of it.
type ledger interface {
	AllClaims() ([]claim.Claim, error)
	Workload(ref claim.WorkloadRef) (claim.Workload, error)
}

// overdue are the claims that should be on their way out and are not: taken before
// a time, by a workload that has ended or is not known.
func overdue(l ledger, before time.Time) (found []Garbage, err error) {
	claims, err := l.AllClaims()
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		if c.State != claim.Taken || !c.TakenAt.Before(before) {
			continue
		}
		workload, err := l.Workload(c.Workload)
		if err != nil && !errors.Is(err, claim.ErrWorkloadNotFound) {
			return nil, err
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
			continue
		}
		found = append(found, g)
	}
	return found, nil
}

// ended are the workloads that ended before a time and hold nothing.
func ended(tx *state.ReadTx, before time.Time) (found []Garbage, err error) {
	all, _, err := tx.Workloads("", state.Page{})
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		if one.Status != claim.Ended || !one.EndedAt.Before(before) {
			continue
		}
		held, err := tx.ClaimsOf(one.Ref)
		if err != nil {
			return nil, err
		}
		if len(held) == 0 {
			found = append(found, Garbage{
				Kind: GarbageWorkload, Namespace: one.Ref.Namespace, ID: one.Ref.ID, Since: one.EndedAt, Reason: "it has ended",
			})
		}
	}
	return found, nil
}

// unused are the drivers that no node has had since a time, and no volume names.
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
			found = append(found, Garbage{Kind: GarbageDriver, ID: d.ID, Since: d.ModifiedAt, Reason: "no node has it, and no volume names it"})
		}
	}
	return found, nil
}

// empty are the nodes that went down before a time and hold nothing.
func empty(tx *state.ReadTx, before time.Time) (found []Garbage, err error) {
	all, err := tx.Nodes()
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if n.Status != claim.NodeDown || !n.StatusAt.Before(before) {
			continue
		}
		held, err := tx.ClaimsOn(n.Name)
		if err != nil {
			return nil, err
		}
		if len(held) == 0 {
			found = append(found, Garbage{Kind: GarbageNode, ID: n.Name, Since: n.StatusAt, Reason: "it is down and holds nothing", node: n})
		}
	}
	return found, nil
}

// expired are the ACL tokens that count for nothing any more.
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
		if _, err := w.Cluster.AdvanceClaims(ctx, "", items...); err != nil {
			return gone, err
		}
		gone = append(gone, part...)
	}
	return gone, nil
}

func (w *Watcher) clearWorkloads(ctx context.Context, now time.Time, some []Garbage) ([]Garbage, error) {
	for {
		result, err := w.Cluster.DeleteWorkloads(ctx, now.Add(-w.GC.Workloads))
		switch {
		case err != nil:
			return nil, err
		case !result.More:
			return some, nil
		}
	}
}

// clearDrivers leaves those alone that a node, or a volume, has taken up since they were read.
func (w *Watcher) clearDrivers(ctx context.Context, now time.Time, some []Garbage) (gone []Garbage, err error) {
	for part := range slices.Chunk(some, command.MaxItems) {
		ids := make([]string, len(part))
		for i, g := range part {
			ids[i] = g.ID
		}
		result, err := w.Cluster.DeleteDrivers(ctx, now.Add(-w.GC.Drivers), ids...)
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

// clearNodes leaves those alone that have come back since they were read.
func (w *Watcher) clearNodes(ctx context.Context, some []Garbage) (gone []Garbage, err error) {
	var errs []error
	for _, g := range some {
		result, err := w.Cluster.DeleteDownNode(ctx, g.node)
		if errs = append(errs, err); err == nil && result.Found {
			gone = append(gone, g)
		}
	}
	return gone, errors.Join(errs...)
}

// sweepDelay is what a node has to revoke the tokens of a workload that has ended, before
// the leader does. It also bounds how often the leader looks for such, and sweeps.
const sweepDelay = 10 * time.Second

// sweepTokens sweeps at once, every interval, and soon after a workload has ended and left
// tokens. What one sweep could not revoke waits for the next interval.
func (w *Watcher) sweepTokens(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if err := w.SweepTokens(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("not all tokens whose workload is gone could be revoked, it is tried again", "error", err, "in", w.GC.Interval)
		}
		w.awaitSweep(ctx, began)
	}
}

// awaitSweep waits until it is time for the next sweep after one that began at a time.
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

// tokensLeft says whether a workload has left tokens since a time: it has ended, or begun
// another run.
func (w *Watcher) tokensLeft(ctx context.Context, since time.Time) (left bool, err error) {
	err = w.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		all, err := tx.Tokens("")
		for _, t := range all {
			workload, err := tx.Workload(t.Workload)
			if errors.Is(err, claim.ErrWorkloadNotFound) {
				continue // since long ago
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
