package watcher

import (
	"context"
	"errors"
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
}

// collect clears up at once and then every interval.
func (w *Watcher) collect(ctx context.Context) {
	tick := time.NewTicker(w.GC.Interval)
	defer tick.Stop()
	for {
		if err := w.Collect(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("clearing up failed, it is tried again", "error", err, "in", w.GC.Interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Collect clears up once. It is the second chance of a claim whose workload has
// ended in a way that nobody told the ledger of.
func (w *Watcher) Collect(ctx context.Context) error {
	now := time.Now()
	err := w.collectClaims(ctx, now.Add(-w.GC.Claims))
	_, werr := w.Cluster.DeleteWorkloads(ctx, now.Add(-w.GC.Workloads))
	return errors.Join(err, werr, w.collectDrivers(ctx, now.Add(-w.GC.Drivers)))
}

func (w *Watcher) collectClaims(ctx context.Context, before time.Time) error {
	var items []command.Advance
	err := w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		items, err = overdue(tx, before)
		return err
	})
	if err != nil || len(items) == 0 {
		return err
	}
	w.Log.Info("claims of ended workloads are released", "claims", len(items))
	_, err = w.Cluster.AdvanceClaims(ctx, "", items...)
	return err
}

// ledger is what overdue reads of it.
type ledger interface {
	AllClaims() ([]claim.Claim, error)
	Workload(ref claim.WorkloadRef) (claim.Workload, error)
}

// overdue are the claims that should be on their way out and are not: taken before
// a time, by a workload that has ended or is not known. At most one command's.
func overdue(l ledger, before time.Time) (items []command.Advance, err error) {
	claims, err := l.AllClaims()
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		if c.State != claim.Taken || !c.TakenAt.Before(before) || len(items) == command.MaxItems {
			continue
		}
		workload, err := l.Workload(c.Workload)
		if err != nil && !errors.Is(err, claim.ErrWorkloadNotFound) {
			return nil, err
		}
		if err != nil || workload.Status == claim.Ended {
			items = append(items, command.Advance{Volume: c.Volume, Workload: c.Workload, Index: c.Index, To: claim.Unpublishing})
		}
	}
	return items, nil
}

func (w *Watcher) collectDrivers(ctx context.Context, before time.Time) error {
	var unused []string
	err := w.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		all, err := tx.Drivers()
		for _, d := range all {
			if d.Unused() && d.ModifiedAt.Before(before) && len(unused) < command.MaxItems {
				unused = append(unused, d.ID)
			}
		}
		return err
	})
	if err != nil || len(unused) == 0 {
		return err
	}
	_, err = w.Cluster.DeleteDrivers(ctx, before, unused...)
	return err
}
