// Package services puts the services of workloads into Consul and keeps them there.
//
// A service is registered with the local Consul agent, with its sidecar nested in it
// (Consul's sidecar_service): Consul then picks the sidecar's port and checks, keeps
// the port on each further registration, and takes the two out together. The agent
// tells the catalog.
//
// Sync watches the catalog, where every loss shows in the end: what the agent has lost
// it takes out of the catalog, and what others write there has never been at the
// agent. It asks /v1/internal/ui/node/:node, the only endpoint that has a node's services
// and checks in one answer and blocks until one of them changes, so a pass without
// drift is one query. What is wrong at the agent is registered there again; what is
// right at the agent and wrong in the catalog is given a moment, since the agent may be
// about to tell, and is then written to the catalog: an agent that believes to be in
// sync tells nothing.
//
// What must stay true:
//   - only what bears the owner's marks (Meta pannier-cluster and pannier-node) is
//     removed;
//   - what Consul gives back for a registration of ours is equal to it (compare.go),
//     whatever Consul and its central configuration add: a service never flaps;
//   - nothing authoritative is kept here. The node's name and the last seen tags of
//     services with EnableTagOverride are memories that may be lost.
//
// What Consul tells nobody cannot be compared: of a check, its headers, body,
// thresholds, TLS settings and initial status. What a check asks, and how often, is in
// its notes for that purpose.
//
// The Consul token in token_file needs this policy, in Consul's HCL:
//
//	service_prefix "" { policy = "write" }
//	node_prefix    "" { policy = "read" }
//	agent_prefix   "" { policy = "read" }
//
// and, for ingress and terminating gateways, whose config entries are written:
//
//	mesh = "write"
//
// It may import sdk/registration, sdk/service, plugins/internal/consul, consul/api and
// gRPC's codes.
package services

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Services is a registration plugin for Consul. It is safe for concurrent use.
type Services struct {
	pool *consul.Pool

	mu    sync.Mutex
	nodes map[service.Consul]string              // the names of the agents' nodes
	tags  map[service.Consul]map[string][]string // last seen with EnableTagOverride, by id
}

var _ registration.Registration = (*Services)(nil)

// New makes a Services without connections.
func New() *Services {
	return &Services{
		pool:  consul.NewPool(),
		nodes: map[service.Consul]string{},
		tags:  map[service.Consul]map[string][]string{},
	}
}

// Close closes the connections to all Consuls. It may be called again.
func (s *Services) Close() error { return s.pool.Close() }

// Register implements registration.Registration.
func (s *Services) Register(ctx context.Context, c service.Consul, i registration.Instance) (proxyID string, err error) {
	w, err := want(i)
	if err != nil {
		return "", err
	}
	agent, err := s.agent(c)
	if err != nil {
		return "", err
	}
	if err := agent.configure(ctx, i); err != nil {
		return "", err
	}
	if err := agent.register(ctx, w.registration, true); err != nil {
		return "", err
	}
	if w.sidecar == nil { // it may have had one
		if err := agent.removeAny(ctx, i.ID+sidecarSuffix); err != nil {
			return "", err
		}
	}
	if i.Service.EnableTagOverride {
		s.remember(c, i.ID, i.Service.Tags)
		if err := s.settleTags(ctx, agent, i); err != nil {
			return "", err
		}
	}
	return w.proxyID(), nil
}

// Deregister implements registration.Registration.
func (s *Services) Deregister(ctx context.Context, c service.Consul, id string) error {
	agent, err := s.agent(c)
	if err != nil {
		return err
	}
	s.remember(c, id, nil)
	return agent.removeAny(ctx, id+sidecarSuffix, id)
}

// agent is the way to one Consul's local agent, with the token of this moment.
type agent struct {
	*api.Client
	consul service.Consul
}

func (s *Services) agent(c service.Consul) (*agent, error) {
	token, err := consul.Token(c.TokenFile)
	if err != nil {
		return nil, consul.Error(err, c, "read the token")
	}
	client, err := s.pool.Client(c, token)
	if err != nil {
		return nil, err
	}
	return &agent{Client: client, consul: c}, nil
}

// register registers a service and its nested sidecar. With replace, checks that it
// does not have are taken out.
func (a *agent) register(ctx context.Context, r *api.AgentServiceRegistration, replace bool) error {
	err := a.Agent().ServiceRegisterOpts(r, api.ServiceRegisterOpts{ReplaceExistingChecks: replace}.WithContext(ctx))
	return a.error(err, "register service %q", r.ID)
}

// removeAny takes out what is there of these services. Consul's log calls it an error
// to take out what is not.
func (a *agent) removeAny(ctx context.Context, ids ...string) error {
	var terms []string
	for _, id := range ids {
		terms = append(terms, fmt.Sprintf("ID == %q", id))
	}
	there, err := a.Agent().ServicesWithFilterOpts(strings.Join(terms, " or "), query(ctx))
	if err != nil {
		return a.error(err, "look for service %q", ids[len(ids)-1])
	}
	for _, id := range ids {
		if there[id] == nil {
			continue
		}
		if err := a.deregister(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// deregister takes a service out with its checks. One that is not there is success.
func (a *agent) deregister(ctx context.Context, id string) error {
	err := a.error(a.Agent().ServiceDeregisterOpts(id, query(ctx)), "deregister service %q", id)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// neededPolicy is what the host's own token has to allow.
const neededPolicy = `a policy with service_prefix "" { policy = "write" }, node_prefix "" { policy = "read" } and ` +
	`agent_prefix "" { policy = "read" }, and mesh = "write" for gateways`

// error is consul.Error; where the host's token is unknown or lacks a permission, it
// names the file and says which policy is needed.
func (a *agent) error(err error, what string, args ...any) error {
	err = consul.Error(err, a.consul, what, args...)
	if status.Code(err) != codes.PermissionDenied {
		return err
	}
	text := status.Convert(err).Message()
	switch {
	case strings.Contains(text, "ACL not found"):
		return status.Errorf(codes.PermissionDenied, "%s: Consul does not know the token in token_file %q: put one there that has %s", text, a.consul.TokenFile, neededPolicy)
	case strings.Contains(text, "Permission denied"):
		return status.Errorf(codes.PermissionDenied, "%s: the token in token_file %q needs %s", text, a.consul.TokenFile, neededPolicy)
	}
	return err
}

func query(ctx context.Context) *api.QueryOptions { return new(api.QueryOptions).WithContext(ctx) }

func write(ctx context.Context) *api.WriteOptions { return new(api.WriteOptions).WithContext(ctx) }

// Heartbeat implements registration.Registration. A check that is not there is left to
// Sync.
func (s *Services) Heartbeat(ctx context.Context, c service.Consul, beats []registration.Beat) error {
	agent, err := s.agent(c)
	if err != nil {
		return err
	}
	work := newWork(ctx)
	for _, b := range beats {
		work.do(func(ctx context.Context) error {
			health := api.HealthCritical
			if b.Healthy {
				health = api.HealthPassing
			}
			err := agent.error(agent.Agent().UpdateTTLOpts(processCheck(b.ID), b.Output, health, query(ctx)), "tell the health of service %q", b.ID)
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return err
		})
	}
	return work.wait()
}

// parallel bounds the requests to an agent that one call has in flight.
const parallel = 16

// work is a number of requests to an agent side by side. One that Consul refuses does
// not keep the others from being made; one that fails since Consul is in trouble does.
type work struct {
	group *errgroup.Group
	ctx   context.Context // of the requests

	mu      sync.Mutex
	refused error // the first
}

func newWork(ctx context.Context) *work {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	return &work{group: group, ctx: ctx}
}

func (w *work) do(request func(context.Context) error) {
	w.group.Go(func() error {
		err := request(w.ctx)
		switch status.Code(err) {
		case codes.OK, codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled:
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused == nil {
			w.refused = err
		}
		return nil
	})
}

// wait returns once all have ended.
func (w *work) wait() error {
	if err := w.group.Wait(); err != nil {
		return err
	}
	return w.refused
}
