package workload

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/host/internal/system/events"
)

// meet compares what the ledger has of this node with the records of the journal. It ends the
// workloads that the journal does not know, takes down those that have lost a claim, and deals
// with mounts and tokens that nothing explains; it returns the mounts that it left alone.
func (m *Manager) meet(ctx context.Context, found []*record) (leftovers []string, err error) {
	had := m.claimed()
	standing, claims, err := m.Ledger.OnNode(ctx, m.Node)
	if err != nil {
		return nil, fmt.Errorf("read this node's workloads in the ledger: %w", err)
	}
	if err := m.endUnknown(ctx, standing); err != nil {
		return nil, err
	}
	if leftovers, err = m.leftovers(ctx, claims, found); err != nil {
		return nil, err
	}
	m.dropLost(had, claims)
	return leftovers, m.dropTokens(ctx, found)
}

// meetFirst is the first attempt. A ledger that may be away gets a moment to answer.
func (m *Manager) meetFirst(ctx context.Context, found []*record) ([]string, error) {
	if !m.Patient {
		return m.meet(ctx, found)
	}
	bounded, cancel := context.WithTimeout(ctx, m.limits.ledger)
	defer cancel()
	return m.meet(bounded, found)
}

// meetLater goes on until the ledger has answered, or ctx ends. Then the workloads go on.
func (m *Manager) meetLater(ctx context.Context, found []*record) {
	pause := m.pause()
	for {
		if pausing(ctx, pause.NextBackOff()) != nil {
			return
		}
		left, err := m.meetFirst(ctx, found)
		if err != nil {
			m.log.Debug("the ledger cannot be reached yet", "error", err)
			continue
		}
		for _, l := range left {
			m.log.Warn("a mount that no record explains is left alone", "why", l)
		}
		close(m.met)
		m.log.Info("the ledger was reached; this node's workloads go on")
		m.Events.Publish(events.Event{Topic: events.TopicAgent, Type: "ledger-reached", Subject: m.Node})
		for _, i := range m.all() {
			_ = i.update(nil, func(*record) {}) // whoever waits looks again
		}
		return
	}
}

// awaitMet waits until the workload's claims were compared with the ledger, where an earlier
// process of the host began it.
func (i *instance) awaitMet(ctx context.Context) error {
	if i.met == nil {
		return nil
	}
	select {
	case <-i.met:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// seen is the state as it is shown. mu is held.
func (i *instance) seen() State {
	up := i.rec.State == Starting || i.rec.State == Running
	if up && i.met != nil && !isClosed(i.met) {
		return Unknown
	}
	return i.rec.State
}
