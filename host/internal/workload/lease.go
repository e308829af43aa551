package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errCutOff: the ledger is not called while a volume is mounted.
var errCutOff = errors.New("the node was cut off, and unmounts before it asks the ledger")

// LoseLease takes all workloads down that have claims on volumes, or may have, because this node
// may not use them any more. They end as failed, for the given reason. Their processes get little
// time to end by themselves, and the ledger is not waited for. It returns when nothing of their
// volumes is mounted, or with what is left when ctx ends; the rest of their release goes on.
func (m *Manager) LoseLease(ctx context.Context, reason string) error {
	var stops sync.WaitGroup
	all := m.all()
	errs := make([]error, len(all))
	for n, i := range all {
		if !i.mayHaveClaims() {
			continue
		}
		i.lose(reason)
		i.cut()
		i.askStop(reason) // again: an undo that waits for its next attempt tries at once
		stops.Go(func() { errs[n] = i.awaitUnused(ctx) })
	}
	stops.Wait()
	return errors.Join(errs...)
}

// mayHaveClaims reports that the workload has claims, or may have. One that still waits for others
// has none, and gets none without a lease.
func (i *instance) mayHaveClaims() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.volumes.Volumes) > 0 && i.rec.Steps[claimStep] != ""
}

// lose asks for a stop that ends the workload as failed.
func (i *instance) lose(reason string) {
	i.View(func() { i.lost = true })
	i.askStop(reason)
}

func (i *instance) isCutOff() bool { return i.cutOff.Err() != nil }

// undoPause is the pause before the next attempt to undo: short while a node that was cut off has
// something mounted.
func (r *run) undoPause(pause time.Duration) time.Duration {
	if r.isCutOff() && r.inUse() {
		return min(pause, r.m.limits.undo.Min)
	}
	return pause
}

// graceful is a context for waits that let processes end by themselves: it times out soon after
// the node was cut off.
func (r *run) graceful(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.cutOff, func() {
		select {
		case <-ctx.Done():
		case <-time.After(r.m.limits.cutGrace):
			cancel(context.DeadlineExceeded)
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}

// inUse reports that a volume of the workload may be mounted.
func (i *instance) inUse() (is bool) {
	i.View(func() { is = i.volumes.InUse() })
	return is
}

// awaitUnused waits until none of the workload's volumes is mounted; the error says what keeps
// them when ctx ends first.
func (i *instance) awaitUnused(ctx context.Context) error {
	for {
		i.mu.Lock()
		using, changed, waiting := i.volumes.InUse(), i.changed.Wait(), i.rec.Waiting
		stopping := i.rec.State != Starting && i.rec.State != Running
		i.mu.Unlock()
		if stopping && !using {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s is not unmounted yet: %w: %s", i, context.Cause(ctx), waiting)
		}
	}
}
