package services

import (
	"context"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/registration"
)

// push makes the catalog say of the services that differ what the agent says of them,
// as the agent does once a minute or so.
func (p *pass) push(ctx context.Context, d *differences, seen *view) error {
	local, err := p.agent.local(ctx)
	if err != nil {
		return err
	}
	work := newWork(ctx)
	for id, reason := range d.drifted {
		have := local.services[id]
		if have == nil {
			continue // lost since; the next pass sees it
		}
		w := p.wanted[id]
		p.note(w.instance.ID, registration.Registered, reason)
		entry := *have
		if have.EnableTagOverride {
			entry.Tags = p.tags(w, seen)
		}
		var checks api.HealthChecks
		for _, c := range local.checks[id] {
			checks = append(checks, c)
		}
		stale := slices.DeleteFunc(seen.staleChecks(id, w.parts()[id]), func(check string) bool {
			return local.checks[id][check] != nil // the agent would bring it back
		})
		work.do(func(ctx context.Context) error {
			if err := p.agent.tell(ctx, p.node, &entry, checks); err != nil {
				return err
			}
			for _, check := range stale {
				if err := p.agent.forget(ctx, &api.CatalogDeregistration{Node: p.node, CheckID: check}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, id := range d.leftover {
		if local.services[id] != nil {
			continue
		}
		p.note(id, registration.Removed, "not wanted")
		work.do(func(ctx context.Context) error {
			return p.agent.forget(ctx, &api.CatalogDeregistration{Node: p.node, ServiceID: id})
		})
	}
	return work.wait()
}

// tell writes a service and its checks, as the agent has them, to the catalog.
func (a *agent) tell(ctx context.Context, node string, s *api.AgentService, checks api.HealthChecks) error {
	s.Datacenter, s.ContentHash = "", "" // of the agent's answer alone
	_, err := a.Catalog().Register(&api.CatalogRegistration{Node: node, SkipNodeUpdate: true, Service: s, Checks: checks}, write(ctx))
	return a.error(err, "write service %q of node %q to the catalog", s.ID, node)
}

// forget takes a service or a check out of the catalog.
func (a *agent) forget(ctx context.Context, what *api.CatalogDeregistration) error {
	_, err := a.Catalog().Deregister(what, write(ctx))
	return a.error(err, "take %q of node %q out of the catalog", what.ServiceID+what.CheckID, what.Node)
}
