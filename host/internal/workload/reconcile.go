package workload

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// reconcile compares what the ledger has of this node with the records of the journal. It ends the
// workloads that the journal does not know, takes down those that have lost a claim, unmounts
// mounts and revokes tokens that no record explains; it returns the mounts that it left alone.
func (m *Manager) reconcile(ctx context.Context, found []*record) (leftovers []string, err error) {
	if m.RemoteLedger {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.limits.ledger)
		defer cancel()
	}
	had := m.Reconciler.claimed()
	on, err := cluster.OnNode(ctx, m.Ledger, m.Node)
	if err != nil {
		return nil, fmt.Errorf("read this node's workloads in the ledger: %w", err)
	}
	if err := m.Reconciler.endUnknown(ctx, on.Workloads); err != nil {
		return nil, err
	}
	var services []*servicesteps.Record
	for _, rec := range found {
		services = append(services, rec.Services...)
	}
	if leftovers, err = m.Repairs.unmountLeftovers(ctx, on.Claims); err != nil {
		return nil, err
	}
	m.Reconciler.dropLost(had, on.Claims)
	unknown, err := m.services.Unknown(ctx, services)
	if err == nil && len(unknown) > 0 {
		m.log.Warn("the ledger has tokens of this node that the journal does not know; they are revoked", "tokens",
			len(unknown))
		m.live.Go(func() { m.services.RevokeAll(m.ctx, unknown) })
	}
	return leftovers, err
}

// reconcileLater retries until the ledger has answered, or ctx ends. Then the workloads continue.
func (m *Manager) reconcileLater(ctx context.Context, found []*record) {
	pause := m.limits.retry.Start()
	for {
		if step.Sleep(ctx, pause.NextBackOff()) != nil {
			return
		}
		left, err := m.reconcile(ctx, found)
		if err != nil {
			m.log.Debug("the ledger cannot be reached yet", "error", err)
			continue
		}
		for _, l := range left {
			m.log.Warn("a mount that no record explains is left alone", "why", l)
		}
		close(m.reconciled)
		m.log.Info("the ledger was reached; this node's workloads continue")
		m.Events.Publish(events.Event{Topic: events.TopicAgent, Type: "ledger-reached", Subject: m.Node})
		for _, i := range m.known.all() {
			i.Update(func() {}) // its state is not Unknown any more
		}
		return
	}
}

// Reconciler compares the claims and workloads that the ledger has of this node with those that are here.
type Reconciler struct {
	node   string
	ledger cluster.Ledger
	known  *table
	fenced func(ref claim.WorkloadRef, since boottime.Instant) string // Deps.Fenced
	log    hclog.Logger
}

// Reconcile compares the workloads of this node with the ledger, after the node was cut off. A
// workload that has lost a claim is taken down: it undoes what it has here, and touches no claim of
// another. The others continue. A workload that only the ledger knows is ended.
func (r *Reconciler) Reconcile(ctx context.Context) error {
	had := r.claimed()
	on, err := cluster.OnNode(ctx, r.ledger, r.node)
	if err != nil {
		return fmt.Errorf("read this node's workloads in the ledger: %w", err)
	}
	r.dropLost(had, on.Claims)
	return r.endUnknown(ctx, on.Workloads)
}

// claimed are the workloads that have their claims. It is called before the ledger is read: claims
// that are taken later are not in what was read.
func (r *Reconciler) claimed() []*instance {
	return slices.DeleteFunc(r.known.all(), func(i *instance) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		up := i.rec.State == Starting || i.rec.State == Running
		return !up || !i.volumes.HasClaims() || i.rec.Steps[claimStep] != step.Done
	})
}

// dropLost takes down the workloads that have lost a claim.
func (r *Reconciler) dropLost(had []*instance, standing []claim.Claim) {
	for _, i := range had {
		reason := ""
		if r.fenced != nil {
			var started boottime.Instant
			i.View(func() { started = i.rec.StartedOn })
			reason = r.fenced(i.ref, started)
		}
		if lost := i.volumes.Lost(r.node, standing); reason == "" && len(lost) > 0 {
			reason = fmt.Sprintf("the node was away, and the ledger has released its claims on %v", lost)
		}
		if reason == "" {
			continue
		}
		r.log.Warn("a workload may not use its volumes any more and is taken down", "workload", i.ref, "reason", reason)
		i.lose(reason)
		i.cut()
	}
}

// endUnknown ends the workloads that run here according to the ledger and are not in the journal:
// then their claims are released.
func (r *Reconciler) endUnknown(ctx context.Context, standing []claim.Workload) error {
	for _, w := range standing {
		if r.known.owns(w.Ref) {
			continue
		}
		r.log.Warn("the ledger has a workload of this node that the journal does not know; its claims are released",
			"workload", w.Ref)
		end := command.End(claim.Run{Ref: w.Ref, Node: r.node, Index: w.CreateIndex})
		if _, err := cluster.Apply(ctx, r.ledger, end); err != nil {
			return fmt.Errorf("end workload %q: %w", w.Ref, err)
		}
	}
	return nil
}

// shownState is the state as it is shown. mu is held.
func (i *instance) shownState() State {
	up := i.rec.State == Starting || i.rec.State == Running
	if up && i.reconciled != nil && !isClosed(i.reconciled) {
		return Unknown
	}
	return i.rec.State
}
