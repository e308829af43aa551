package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// errCutOff: the ledger is not asked as long as a volume is mounted.
var errCutOff = errors.New("the node was cut off, and unmounts before it asks the ledger")

// LoseLease takes every workload down that has claims on volumes, or may have, since this node
// may not use them any more: reason says why, and they end as failed. Their processes get little time to end by
// themselves, and the ledger is not waited for. It returns when nothing of their volumes is
// mounted, or with what is left when ctx ends; the rest of their release goes on.
func (m *Manager) LoseLease(ctx context.Context, reason string) error {
	var stops sync.WaitGroup
	all := m.all()
	errs := make([]error, len(all))
	for n, i := range all {
		if !i.holds() {
			continue
		}
		i.lose(reason)
		i.cut()
		i.askStop(reason) // again: an attempt that waits is made now
		stops.Go(func() { errs[n] = i.awaitUnused(ctx) })
	}
	stops.Wait()
	return errors.Join(errs...)
}

// holds says whether the workload has claims, or may have. One that still waits for others has
// none, and gets none without a lease.
func (i *instance) holds() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.volumes) > 0 && i.rec.Steps[claimStep] != ""
}

// Reconcile compares what this node has with the ledger, after the node was away. What has
// lost a claim is taken down: it undoes what it has here, and touches nobody else's claim.
// What is intact goes on. What the ledger has of this node and nobody here knows is ended.
func (m *Manager) Reconcile(ctx context.Context) error {
	had := m.claimed()
	standing, claims, err := m.Ledger.OnNode(ctx, m.Node)
	if err != nil {
		return fmt.Errorf("read this node's workloads in the ledger: %w", err)
	}
	m.dropLost(had, claims)
	return m.endUnknown(ctx, standing)
}

// claimed are the workloads that have their claims. They are looked for before the ledger is
// read: the claims of others may come later.
func (m *Manager) claimed() []*instance {
	return slices.DeleteFunc(m.all(), func(i *instance) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		up := i.rec.State == Starting || i.rec.State == Running
		return !up || len(i.volumes) == 0 || i.rec.Steps[claimStep] != done
	})
}

// dropLost takes those down that have lost a claim.
func (m *Manager) dropLost(had []*instance, standing []claim.Claim) {
	for _, i := range had {
		reason := m.fenced(i)
		if lost := i.lostOf(m.Node, standing); reason == "" && len(lost) > 0 {
			reason = fmt.Sprintf("the node was away, and the ledger has let go of its claims on %v", lost)
		}
		if reason == "" {
			continue
		}
		m.log.Warn("a workload may not use its volumes any more and is taken down", "workload", i.ref, "reason", reason)
		i.lose(reason)
		i.cut()
	}
}

// fenced tells what the fence did to a workload; empty: nothing.
func (m *Manager) fenced(i *instance) string {
	if m.Fenced == nil {
		return ""
	}
	return m.Fenced(i.ref, i.snapshot().StartedAt)
}

// lose asks for the stop of a workload that ends as failed.
func (i *instance) lose(reason string) {
	i.mu.Lock()
	i.lost = true
	i.mu.Unlock()
	i.askStop(reason)
}

func (i *instance) isCutOff() bool { return i.cutOff.Err() != nil }

// hurried is the pause before the next attempt of a release.
func (r *run) hurried(pause time.Duration) time.Duration {
	if r.isCutOff() && r.inUse() {
		return min(pause, r.limits.undoMin)
	}
	return pause
}

// graceful is a context for waits that are out of politeness: they time out soon after the
// node was cut off.
func (r *run) graceful(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.cutOff, func() {
		select {
		case <-ctx.Done():
		case <-time.After(r.limits.cutGrace):
			cancel(context.DeadlineExceeded)
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}

// inUse says whether anything of the workload's volumes may be mounted.
func (i *instance) inUse() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.using()
}

// using is inUse; mu is held.
func (i *instance) using() bool {
	return slices.ContainsFunc(i.volumes, func(v *volume) bool { return v.Steps["stage"] != "" || v.Steps["publish"] != "" })
}

// awaitUnused waits until nothing of the workload's volumes is mounted, and says what keeps
// it where ctx ends first.
func (i *instance) awaitUnused(ctx context.Context) error {
	for {
		i.mu.Lock()
		using, changed, waiting := i.using(), i.changed.Wait(), i.rec.Waiting
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
