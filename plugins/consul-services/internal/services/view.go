package services

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/service"
)

// serfHealth is the check with which Consul reports that a node is alive.
const serfHealth = "serfHealth"

// view is what the catalog, or the agent, has for a node.
type view struct {
	services map[string]*api.AgentService
	checks   map[string]map[string]*api.HealthCheck // by service id and check id
	alive    bool                                   // the node passes serfHealth; only for the catalog
}

func newView() *view {
	return &view{services: map[string]*api.AgentService{}, checks: map[string]map[string]*api.HealthCheck{}}
}

func (v *view) addCheck(c *api.HealthCheck) {
	if v.checks[c.ServiceID] == nil {
		v.checks[c.ServiceID] = map[string]*api.HealthCheck{}
	}
	v.checks[c.ServiceID][c.CheckID] = c
	if c.CheckID == serfHealth {
		v.alive = c.Status == api.HealthPassing
	}
}

// catalog reads the catalog's view of a node, once it is newer than index or wait has passed. It is Unavailable
// while the catalog does not have the node.
func (a *agent) catalog(ctx context.Context, node string, index uint64, wait time.Duration) (*view, uint64, error) {
	var dump struct {
		Services []*api.AgentService
		Checks   []*api.HealthCheck
	}
	q := query(ctx)
	if index > 0 && wait > 0 {
		q.WaitIndex, q.WaitTime = index, wait
	}
	meta, err := a.Raw().Query("/v1/internal/ui/node/"+node, &dump, q)
	if consul.Answered(err, http.StatusNotFound) {
		return nil, 0, status.Errorf(codes.Unavailable,
			"Consul %q (%s): the catalog has no node %q: either its agent has not joined yet, or the token in token_file %q lacks node_prefix \"\" { policy = \"read\" }",
			a.consul.Name, a.consul.Address, node, a.consul.TokenFile)
	}
	if err != nil {
		return nil, 0, a.error(err, "read what the catalog has of node %q", node)
	}
	v := newView()
	for _, s := range consul.Present(dump.Services) {
		v.services[s.ID] = s
	}
	for _, c := range consul.Present(dump.Checks) {
		v.addCheck(c)
	}
	return v, meta.LastIndex, nil
}

// local reads the agent's view.
func (a *agent) local(ctx context.Context) (*view, error) {
	v := newView()
	if _, err := a.Raw().Query("/v1/agent/services", &v.services, query(ctx)); err != nil {
		return nil, a.error(err, "list the agent's services")
	}
	maps.DeleteFunc(v.services, func(_ string, s *api.AgentService) bool { return s == nil })
	var checks map[string]*api.HealthCheck
	if _, err := a.Raw().Query("/v1/agent/checks", &checks, query(ctx)); err != nil {
		return nil, a.error(err, "list the agent's checks")
	}
	for _, c := range consul.Present(slices.Collect(maps.Values(checks))) {
		v.addCheck(c)
	}
	return v, nil
}

// nodeName asks the agent for its node's name.
func (a *agent) nodeName(ctx context.Context) (string, error) {
	var self struct{ Config struct{ NodeName string } }
	if _, err := a.Raw().Query("/v1/agent/self", &self, query(ctx)); err != nil {
		return "", a.error(err, "ask the agent for its node's name")
	}
	return self.Config.NodeName, nil
}

// node returns the name of the agent's node. It asks the agent once, or again if again is set.
func (s *Services) node(ctx context.Context, a *agent, again bool) (string, error) {
	s.mu.Lock()
	name, known := s.nodes[a.consul]
	s.mu.Unlock()
	if known && !again {
		return name, nil
	}
	name, err := a.nodeName(ctx)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[a.consul] = name
	return name, nil
}

// forgetCheck makes the check of a sidecar new: a registration has set its interval back.
func (s *Services) forgetCheck(c service.Consul, sidecar string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, proxyCheck{c, checkPrefix(sidecar) + ":1"})
}

// isNew reports, once for a check, that it has not passed yet.
func (s *Services) isNew(c service.Consul, check *api.HealthCheck) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := proxyCheck{c, check.CheckID}
	if check.Status == api.HealthPassing || s.seen[key] == check.CreateIndex {
		return false
	}
	s.seen[key] = check.CreateIndex
	return true
}

// remember stores the last seen tags of a service with EnableTagOverride; nil removes them.
func (s *Services) remember(c service.Consul, id string, tags []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case tags == nil:
		delete(s.tags[c], id)
	case s.tags[c] == nil:
		s.tags[c] = map[string][]string{id: tags}
	default:
		s.tags[c][id] = tags
	}
}

// remembered returns the tags stored by remember.
func (s *Services) remembered(c service.Consul, id string) (tags []string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tags, ok = s.tags[c][id]
	return tags, ok
}
