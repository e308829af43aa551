package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// reconcile compares what the ledger has of this node with the records of the journal. It ends the
// workloads that the journal does not know, takes down those that have lost a claim, unmounts
// mounts and revokes tokens that no record explains; it returns the mounts that it left alone.
func (m *Manager) reconcile(ctx context.Context, found []*record) (leftovers []string, err error) {
	had := m.claimed()
	on, err := cluster.OnNode(ctx, m.Ledger, m.Node)
	if err != nil {
		return nil, fmt.Errorf("read this node's workloads in the ledger: %w", err)
	}
	if err := m.endUnknown(ctx, on.Workloads); err != nil {
		return nil, err
	}
	var services []*servicesteps.Record
	for _, rec := range found {
		services = append(services, rec.Services...)
	}
	if leftovers, err = m.unmountLeftovers(ctx, on.Claims); err != nil {
		return nil, err
	}
	m.dropLost(had, on.Claims)
	unknown, err := m.services.Unknown(ctx, services)
	if err == nil && len(unknown) > 0 {
		m.log.Warn("the ledger has tokens of this node that the journal does not know; they are revoked", "tokens",
			len(unknown))
		m.live.Go(func() { m.services.RevokeAll(m.ctx, unknown) })
	}
	return leftovers, err
}

// unmountLeftovers unmounts what no workload of this node explains. A volume that a workload has claimed which this
// node does not know is left to the release of that claim.
func (m *Manager) unmountLeftovers(ctx context.Context, claims []claim.Claim) ([]string, error) {
	left, err := m.volumes.UnmountLeftovers(ctx, func(ref claim.VolumeRef) bool {
		return slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.Volume == ref && !m.Owns(c.Workload) })
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leftovers = left
	return left, err
}

// explained reports that a workload which has not ended has a volume mounted at path, or may have.
func (m *Manager) explained(path string) bool {
	return slices.ContainsFunc(m.all(), func(i *instance) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return !i.rec.State.Ended() && slices.ContainsFunc(i.rec.Volumes, func(v *volumesteps.Record) bool {
			return v.Target != "" && (isBelow(path, v.Target) || isBelow(path, v.Staging))
		})
	})
}

func isBelow(path, dir string) bool {
	rest, is := strings.CutPrefix(path, dir)
	return is && dir != "" && (rest == "" || rest[0] == '/')
}

// keepRepaired unmounts from time to time what no workload explains, until ctx ends: a driver may mount long after
// everything was released (see volumesteps). It repeats what reconcile has done; changed is closed when the drivers
// have changed since that began.
func (m *Manager) keepRepaired(ctx context.Context, changed <-chan struct{}) {
	select {
	case <-m.reconciled:
	case <-ctx.Done():
		return
	}
	for {
		if len(m.Leftovers()) == 0 {
			changed = nil // what is left may wait for a driver
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(m.limits.repair):
		}
		changed = m.Drivers.Changed() // before the repair: no change is missed
		if err := m.repair(ctx); err != nil {
			m.log.Debug("the mounts of this node cannot be compared with its workloads: this is retried", "error", err)
		}
	}
}

func (m *Manager) repair(ctx context.Context) error {
	there, err := mounts.Below(m.Layout.Dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(there, func(at mounts.Mount) bool { return !m.explained(at.Path) }) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, m.limits.ledger)
	defer cancel()
	on, err := cluster.OnNode(bounded, m.Ledger, m.Node)
	if err != nil {
		return err
	}
	_, err = m.unmountLeftovers(ctx, on.Claims)
	return err
}

// Leftovers are the mounts in the drivers' folders that no workload explains and that cannot be unmounted, as of the
// last repair.
func (m *Manager) Leftovers() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.leftovers)
}

// tryReconcile is one attempt to reconcile, with a time limit where the ledger is on other hosts.
func (m *Manager) tryReconcile(ctx context.Context, found []*record) ([]string, error) {
	if !m.RemoteLedger {
		return m.reconcile(ctx, found)
	}
	bounded, cancel := context.WithTimeout(ctx, m.limits.ledger)
	defer cancel()
	return m.reconcile(bounded, found)
}

// reconcileLater retries until the ledger has answered, or ctx ends. Then the workloads continue.
func (m *Manager) reconcileLater(ctx context.Context, found []*record) {
	pause := m.limits.retry.Start()
	for {
		if step.Sleep(ctx, pause.NextBackOff()) != nil {
			return
		}
		left, err := m.tryReconcile(ctx, found)
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
		for _, i := range m.all() {
			i.Update(func() {}) // its state is not Unknown any more
		}
		return
	}
}

// Reconcile compares the workloads of this node with the ledger, after the node was cut off. A
// workload that has lost a claim is taken down: it undoes what it has here, and touches no claim of
// another. The others continue. A workload that only the ledger knows is ended.
func (m *Manager) Reconcile(ctx context.Context) error {
	had := m.claimed()
	on, err := cluster.OnNode(ctx, m.Ledger, m.Node)
	if err != nil {
		return fmt.Errorf("read this node's workloads in the ledger: %w", err)
	}
	m.dropLost(had, on.Claims)
	return m.endUnknown(ctx, on.Workloads)
}

// claimed are the workloads that have their claims. It is called before the ledger is read: claims
// that are taken later are not in what was read.
func (m *Manager) claimed() []*instance {
	return slices.DeleteFunc(m.all(), func(i *instance) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		up := i.rec.State == Starting || i.rec.State == Running
		return !up || !i.volumes.HasClaims() || i.rec.Steps[claimStep] != step.Done
	})
}

// dropLost takes down the workloads that have lost a claim.
func (m *Manager) dropLost(had []*instance, standing []claim.Claim) {
	for _, i := range had {
		reason := m.fenced(i)
		if lost := i.volumes.Lost(m.Node, standing); reason == "" && len(lost) > 0 {
			reason = fmt.Sprintf("the node was away, and the ledger has released its claims on %v", lost)
		}
		if reason == "" {
			continue
		}
		m.log.Warn("a workload may not use its volumes any more and is taken down", "workload", i.ref, "reason", reason)
		i.lose(reason)
		i.cut()
	}
}

// fenced says what the fence did to a workload; empty: nothing.
func (m *Manager) fenced(i *instance) string {
	if m.Fenced == nil {
		return ""
	}
	var started boottime.Instant
	i.View(func() { started = i.rec.StartedOn })
	return m.Fenced(i.ref, started)
}

// endUnknown ends the workloads that run here according to the ledger and are not in the journal:
// then their claims are released.
func (m *Manager) endUnknown(ctx context.Context, standing []claim.Workload) error {
	for _, w := range standing {
		if m.Owns(w.Ref) {
			continue
		}
		m.log.Warn("the ledger has a workload of this node that the journal does not know; its claims are released",
			"workload", w.Ref)
		end := command.End(claim.Run{Ref: w.Ref, Node: m.Node, Index: w.CreateIndex})
		if _, err := cluster.Apply(ctx, m.Ledger, end); err != nil {
			return fmt.Errorf("end workload %q: %w", w.Ref, err)
		}
	}
	return nil
}

// awaitReconciled waits until the claims of a workload that an earlier process of the host began
// were compared with the ledger.
func (i *instance) awaitReconciled(ctx context.Context) error {
	if i.reconciled == nil {
		return nil
	}
	select {
	case <-i.reconciled:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// shownState is the state as it is shown. mu is held.
func (i *instance) shownState() State {
	up := i.rec.State == Starting || i.rec.State == Running
	if up && i.reconciled != nil && !isClosed(i.reconciled) {
		return Unknown
	}
	return i.rec.State
}
