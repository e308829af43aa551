package watcher

import (
	"context"
	"errors"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
)

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
