package services

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/registration"
)

// push makes the catalog match the agent for the services that differ, as the agent itself does about once a
// minute.
func (p *pass) push(ctx context.Context, d *differences, seen *view) error {
	local, err := p.agent.local(ctx)
	if err != nil {
		return err
	}
	work := newWork(ctx)
	for id, reason := range d.drifted {
		have := local.services[id]
		if have == nil {
			continue // lost meanwhile; the next pass notices it
		}
		w := p.wanted[id]
		if reason != aliasDrift {
			p.note(w.instance.ID, registration.Registered, reason)
		}
		entry := *have
		if have.EnableTagOverride {
			entry.Tags = p.tags(w, seen)
		}
		var checks api.HealthChecks
		for _, c := range local.checks[id] {
			checks = append(checks, c)
		}
		stale := slices.DeleteFunc(seen.staleChecks(id, w.parts()[id]), func(check string) bool {
			return local.checks[id][check] != nil // otherwise the agent would restore it
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

// tell writes a service and its checks to the catalog, as the agent has them.
func (a *agent) tell(ctx context.Context, node string, s *api.AgentService, checks api.HealthChecks) error {
	s.Datacenter, s.ContentHash = "", "" // fields of the agent's answer only
	_, err := a.Catalog().Register(&api.CatalogRegistration{Node: node, SkipNodeUpdate: true, Service: s, Checks: checks},
		write(ctx))
	return a.error(err, "write service %q of node %q to the catalog", s.ID, node)
}

// forget removes a service or a check from the catalog.
func (a *agent) forget(ctx context.Context, what *api.CatalogDeregistration) error {
	_, err := a.Catalog().Deregister(what, write(ctx))
	return a.error(err, "remove %q of node %q from the catalog", what.ServiceID+what.CheckID, what.Node)
}

// tags returns the tags with which Sync registers a service. With EnableTagOverride these are the catalog's or, if
// the catalog has lost the service, the last ones seen there.
func (p *pass) tags(w *wanted, catalog *view) []string {
	if !w.instance.Service.EnableTagOverride {
		return w.registration.Tags
	}
	if have := catalog.services[w.instance.ID]; have != nil {
		return have.Tags
	}
	if tags, ok := p.services.remembered(p.agent.consul, w.instance.ID); ok {
		return tags
	}
	return w.registration.Tags
}

// keepTags remembers the catalog's tags of services with EnableTagOverride: when an agent loses a service, the
// catalog loses the service and its tags.
func (p *pass) keepTags(catalog *view) {
	for id, w := range p.wanted {
		if have := catalog.services[id]; have != nil && w.instance.Service.EnableTagOverride && id == w.instance.ID {
			p.services.remember(p.agent.consul, id, have.Tags)
		}
	}
}

// settleTags makes the catalog's tags those of the instance. The agent may interfere: with EnableTagOverride it
// adopts the catalog's tags about once a minute, and it does not write a registration to the catalog that equals
// the last one.
func (s *Services) settleTags(ctx context.Context, a *agent, i registration.Instance) error {
	node, err := s.node(ctx, a, false)
	if err != nil {
		return err
	}
	started := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, patience/4) {
		q := query(ctx)
		q.Filter = fmt.Sprintf("ServiceID == %q and Node == %q", i.ID, node)
		found, _, err := a.Catalog().Service(i.Service.Name, "", q)
		if err != nil {
			return a.error(err, "read the tags of service %q", i.ID)
		}
		if found = consul.Present(found); len(found) > 0 && slices.Equal(found[0].ServiceTags, i.Service.Tags) {
			return nil
		}
		if time.Since(started) > patience {
			return a.tellTags(ctx, node, i)
		}
		if err := sleep(ctx, pause); err != nil {
			return consul.Error(err, a.consul, "wait for the tags of service %q", i.ID)
		}
	}
}

// tellTags writes the agent's service to the catalog, with the instance's tags.
func (a *agent) tellTags(ctx context.Context, node string, i registration.Instance) error {
	var entry api.AgentService
	if _, err := a.Raw().Query("/v1/agent/service/"+i.ID, &entry, query(ctx)); err != nil {
		return a.error(err, "read service %q", i.ID)
	}
	entry.Tags = i.Service.Tags
	return a.tell(ctx, node, &entry, nil)
}
