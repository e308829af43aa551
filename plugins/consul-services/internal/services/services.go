// Package services registers the services of workloads in Consul and keeps them registered.
//
// A service is registered with the local Consul agent, with its sidecar nested in it (Consul's sidecar_service):
// Consul then picks the sidecar's port and checks, keeps the port at each further registration, and removes the
// two together. The agent updates the catalog.
//
// Sync watches the catalog, where every loss becomes visible in the end: the agent removes from the catalog what it has
// lost, and what others write to the catalog never reaches the agent. Sync queries /v1/internal/ui/node/:node, the only
// endpoint that returns a node's services and checks together and blocks until one of them changes, so a pass without
// drift is one query. A service that is wrong at the agent is registered there again. One that is wrong only in the
// catalog gets a moment, since the agent may be about to update the catalog, and is then written to the catalog: an
// agent that believes to be in sync writes nothing.
//
// Invariants:
//   - only services with the owner's marks (Meta pannier-cluster and pannier-node) are removed, and none with the marks
//     of another owner is changed. Nothing in Consul says whether that owner still exists: it may only be restarting.
//     So its services stay until somebody deregisters them, and if it exists it registers them again;
//   - what Consul returns for one of our registrations compares as equal to it (compare.go), whatever Consul and
//     its central configuration add, so that a service is not registered again and again;
//   - a service's intentions are one entry that all its instances share, on whichever hosts: it is changed only if it
//     is as it was read (shares.go);
//   - no authoritative state is kept here. The node's name and the last seen tags of services with
//     EnableTagOverride are caches that may be lost.
//
// What Consul does not return cannot be compared: a check's headers, body, thresholds, TLS settings and initial
// status. For that reason a check's notes contain its target and interval.
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
// and, for services with intentions:
//
//	service_prefix "" {
//		policy     = "write"
//		intentions = "write"
//	}
package services

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/refusal"
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
	clean map[held]bool                          // no intentions can be left there
	seen  map[proxyCheck]uint64                  // the checks that isNew has seen, with their CreateIndex
	known map[service.Consul]hostToken           // the token that was used last

	count     uint64            // how often a host has asked for intentions
	lastAsked map[string]uint64 // count then, by holder
}

// proxyCheck is a check of one Consul.
type proxyCheck struct {
	consul service.Consul
	id     string
}

var (
	_ registration.Registration = (*Services)(nil)
	_ registration.Intender     = (*Services)(nil)
)

// New makes a Services without connections.
func New() *Services {
	return &Services{
		pool:  consul.NewPool(),
		nodes: map[service.Consul]string{},
		tags:  map[service.Consul]map[string][]string{},
		clean: map[held]bool{},
		seen:  map[proxyCheck]uint64{},
		known: map[service.Consul]hostToken{},

		lastAsked: map[string]uint64{},
	}
}

// Close closes the connections to all Consuls. It may be repeated.
func (s *Services) Close() error { return s.pool.Close() }

// Register implements registration.Registration.
func (s *Services) Register(ctx context.Context, c service.Consul, i registration.Instance) (proxyID string,
	err error,
) {
	w, err := want(i)
	if err != nil {
		return "", err
	}
	agent, err := s.agent(c)
	if err != nil {
		return "", err
	}
	accessor, err := s.accessor(ctx, agent)
	if err != nil {
		return "", err
	}
	w.markToken(accessor)
	there, err := agent.find(ctx, i.ID, i.ID+sidecarSuffix)
	if err != nil {
		return "", err
	}
	for _, have := range there {
		if foreign(i.Owner, have.Meta) {
			return "", consul.Error(status.Error(codes.AlreadyExists, conflict(i.Owner, have)), c, "register service %q", i.ID)
		}
	}
	if err := agent.configure(ctx, i); err != nil {
		return "", err
	}
	err = agent.register(ctx, w.registration, true)
	s.forgetCheck(c, i.ID+sidecarSuffix)
	if err != nil {
		return "", err
	}
	if w.sidecar == nil && there[i.ID+sidecarSuffix] != nil { // an earlier registration had one
		if err := agent.deregister(ctx, i.ID+sidecarSuffix); err != nil {
			return "", refusal.AfterEffect(err) // it is registered
		}
	}
	if i.Service.EnableTagOverride {
		s.remember(c, i.ID, i.Service.Tags)
		if err := s.settleTags(ctx, agent, i); err != nil {
			return "", refusal.AfterEffect(err) // it is registered
		}
	}
	return w.proxyID(), nil
}

// Deregister implements registration.Registration. Consul logs an error if a service to be removed does not exist.
func (s *Services) Deregister(ctx context.Context, c service.Consul, owner registration.Owner, id string) error {
	agent, err := s.agent(c)
	if err != nil {
		return err
	}
	s.remember(c, id, nil)
	there, err := agent.find(ctx, id, id+sidecarSuffix)
	if err != nil {
		return err
	}
	for _, part := range []string{id + sidecarSuffix, id} {
		if there[part] == nil || foreign(owner, there[part].Meta) {
			continue
		}
		if err := agent.deregister(ctx, part); err != nil {
			return err
		}
		s.forgetCheck(c, part)
	}
	return nil
}

// agent is a client of one Consul's local agent, with the current token.
type agent struct {
	*api.Client
	consul service.Consul
	secret string // the token
}

// hostToken is a token of the host, with its accessor.
type hostToken struct{ secret, accessor string }

// accessor returns the accessor of the agent's token; empty: it has none, or Consul has ACLs disabled.
func (s *Services) accessor(ctx context.Context, a *agent) (string, error) {
	s.mu.Lock()
	known := s.known[a.consul]
	s.mu.Unlock()
	if known.secret == a.secret {
		return known.accessor, nil
	}
	consistent := query(ctx) // a leader that was just elected may not have read the tokens yet
	consistent.RequireConsistent = true
	token, _, err := a.ACL().TokenReadSelf(consistent)
	if consul.Answered(err, http.StatusUnauthorized) { // ACLs are disabled
		return "", nil
	}
	if err != nil {
		return "", a.error(err, "read the host's token")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[a.consul] = hostToken{a.secret, token.AccessorID}
	return token.AccessorID, nil
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
	return &agent{Client: client, consul: c, secret: token}, nil
}

// register registers a service and its nested sidecar. With replace, checks that are not in the registration are
// removed.
func (a *agent) register(ctx context.Context, r *api.AgentServiceRegistration, replace bool) error {
	err := a.Agent().ServiceRegisterOpts(r, api.ServiceRegisterOpts{ReplaceExistingChecks: replace}.WithContext(ctx))
	return a.error(err, "register service %q", r.ID)
}

// find returns the agent's services among the given ones, by id.
func (a *agent) find(ctx context.Context, ids ...string) (map[string]*api.AgentService, error) {
	var terms []string
	for _, id := range ids {
		terms = append(terms, fmt.Sprintf("ID == %q", id))
	}
	there, err := a.Agent().ServicesWithFilterOpts(strings.Join(terms, " or "), query(ctx))
	maps.DeleteFunc(there, func(_ string, s *api.AgentService) bool { return s == nil })
	return there, a.error(err, "look for service %q", ids[0])
}

// deregister removes a service with its checks. It succeeds if there is none.
func (a *agent) deregister(ctx context.Context, id string) error {
	err := a.error(a.Agent().ServiceDeregisterOpts(id, query(ctx)), "deregister service %q", id)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// neededPolicy is what the host's token has to permit.
const neededPolicy = `a policy with service_prefix "" { policy = "write" }, node_prefix "" { policy = "read" } and ` +
	`agent_prefix "" { policy = "read" }, mesh = "write" for gateways, and intentions = "write" in service_prefix for ` +
	`intentions`

// error is consul.Error. If the host's token is unknown or lacks a permission, the error names the token's file
// and the required policy.
func (a *agent) error(err error, what string, args ...any) error {
	err = consul.Error(err, a.consul, what, args...)
	if status.Code(err) != codes.PermissionDenied {
		return err
	}
	text := status.Convert(err).Message()
	switch {
	case strings.Contains(text, "ACL not found"):
		return status.Errorf(codes.PermissionDenied,
			"%s: Consul does not know the token in token_file %q, and what was registered with it is not kept up to date: "+
				"replace it by one that has %s", text, a.consul.TokenFile,
			neededPolicy)
	case strings.Contains(text, "Permission denied"):
		return status.Errorf(codes.PermissionDenied, "%s: the token in token_file %q needs %s", text, a.consul.TokenFile,
			neededPolicy)
	}
	return err
}

func query(ctx context.Context) *api.QueryOptions { return new(api.QueryOptions).WithContext(ctx) }

func write(ctx context.Context) *api.WriteOptions { return new(api.WriteOptions).WithContext(ctx) }

// Heartbeat implements registration.Registration. It ignores checks that do not exist, because Sync restores them.
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
			err := agent.error(agent.Agent().UpdateTTLOpts(processCheck(b.ID), b.Output, health, query(ctx)),
				"report the health of service %q", b.ID)
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return err
		})
	}
	return work.wait()
}

// parallel bounds the concurrent requests of one call to an agent.
const parallel = 16

// work is a set of concurrent requests to an agent. If Consul refuses one, the others are still made; if one fails
// because Consul is in trouble, they are not.
type work struct {
	group *errgroup.Group
	ctx   context.Context // of the requests

	mu      sync.Mutex
	refused error // the first refusal
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

// wait returns when all have ended.
func (w *work) wait() error {
	if err := w.group.Wait(); err != nil {
		return err
	}
	return w.refused
}
