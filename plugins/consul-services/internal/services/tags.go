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

// tags are those that a service is registered with by Sync: with EnableTagOverride those
// of the catalog or, where it has the service no more, the last that were seen there.
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

// keepTags remembers the catalog's tags of services with EnableTagOverride: when an
// agent has lost a service, the catalog has lost it with its tags.
func (p *pass) keepTags(catalog *view) {
	for id, w := range p.wanted {
		if have := catalog.services[id]; have != nil && w.instance.Service.EnableTagOverride && id == w.instance.ID {
			p.services.remember(p.agent.consul, id, have.Tags)
		}
	}
}

// settleTags makes the catalog's tags those of the instance. The agent may keep it from
// that: with EnableTagOverride it takes the catalog's tags for its own once a minute
// or so, and tells the catalog nothing of a registration that is like the last.
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
		if len(found) > 0 && slices.Equal(found[0].ServiceTags, i.Service.Tags) {
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

// tellTags writes what the agent has of a service to the catalog, with the instance's
// tags.
func (a *agent) tellTags(ctx context.Context, node string, i registration.Instance) error {
	var entry api.AgentService
	if _, err := a.Raw().Query("/v1/agent/service/"+i.ID, &entry, query(ctx)); err != nil {
		return a.error(err, "read service %q", i.ID)
	}
	entry.Tags = i.Service.Tags
	return a.tell(ctx, node, &entry, nil)
}
