package workload

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
)

// restorePlaces gives the workloads of the journal their ports back, and removes files with
// secrets that belong to none of them.
func (m *Manager) restorePlaces(found []*record) error {
	for _, rec := range found {
		if err := m.Ports.Restore(holder(rec.Spec.WorkloadRef), rec.ports()...); err != nil {
			return fmt.Errorf("restore the ports of workload %q: %w", rec.Spec.WorkloadRef, err)
		}
	}
	removed, err := m.SecretsDir.Sweep(func(p secretsdir.Place) bool {
		return slices.ContainsFunc(found, func(rec *record) bool { return rec.has(p) })
	})
	if err != nil {
		m.log.Warn("secrets of workloads that are gone cannot be removed", "error", err)
	}
	if len(removed) > 0 {
		m.log.Warn("removed secrets that no record explains", "paths", removed)
	}
	return nil
}

// dropTokens revokes this node's tokens that belong to no workload of the journal, as soon as
// Consul is there.
func (m *Manager) dropTokens(ctx context.Context, found []*record) error {
	tokens, err := m.Tokens.OnNode(ctx, m.Node)
	if err != nil {
		return fmt.Errorf("read this node's tokens in the ledger: %w", err)
	}
	unknown := slices.DeleteFunc(tokens, func(t claim.Token) bool {
		return slices.ContainsFunc(found, func(rec *record) bool { return rec.knows(t.ID) })
	})
	if len(unknown) > 0 {
		m.log.Warn("the ledger has tokens of this node that the journal does not know; they are revoked", "tokens", len(unknown))
		m.live.Go(func() { m.revokeUnknown(m.ctx, unknown) })
	}
	return nil
}

// ports are all that the workload was given.
func (rec *record) ports() (all []int) {
	for _, p := range rec.Ports {
		all = append(all, p)
	}
	for _, s := range rec.Services {
		if s.AdminPort != 0 {
			all = append(all, s.AdminPort, s.ReadyPort)
		}
	}
	return all
}

func (rec *record) has(p secretsdir.Place) bool {
	return rec.Spec.Namespace == p.Namespace && rec.Spec.ID == p.Workload &&
		slices.ContainsFunc(rec.Services, func(s *serviceRecord) bool { return s.Service.Name == p.Service && s.Token.ID != "" })
}

func (rec *record) knows(token string) bool {
	return slices.ContainsFunc(rec.Services, func(s *serviceRecord) bool {
		return slices.ContainsFunc(s.tokens(), func(t claim.Token) bool { return t.ID == token })
	})
}

// revokeUnknown revokes tokens, again those that fail, until ctx ends. Their ids are
// never used again, so no later workload can have one of them.
func (m *Manager) revokeUnknown(ctx context.Context, tokens []claim.Token) {
	pause := m.pause()
	for said := false; ; said = true {
		var last error
		tokens = slices.DeleteFunc(tokens, func(t claim.Token) bool {
			err := m.revokeOne(ctx, t)
			if err != nil {
				last = err
			}
			return err == nil
		})
		if last == nil || ctx.Err() != nil {
			return
		}
		if !said {
			m.log.Warn("tokens that no record explains cannot be revoked yet, it is tried again", "tokens", len(tokens), "error", last)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

func (m *Manager) revokeOne(ctx context.Context, t claim.Token) error {
	ctx, cancel := context.WithTimeout(ctx, m.limits.release)
	defer cancel()
	return m.Tokens.Revoke(ctx, t, "")
}
