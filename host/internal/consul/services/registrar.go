// Package services keeps the services of this node's workloads in Consul, through
// the registration plugin, and has the bootstraps of their proxies made by the
// bootstrap plugin. It says which Consul is meant, and who registers: a workload only
// knows the name of the agent's consul block.
//
// What must stay true:
//
//   - A sync never takes out what is just being registered, and never puts back what
//     is just being taken out: a Register or a Deregister counts from the moment it is
//     called, and ends a sync under way, which went by the list from before.
//   - Where nothing changes a Consul is asked one blocking query after the other.
//   - A Consul that is away is told of once, in the log and as an event, and asked
//     again with a growing pause. It keeps no other Consul's services from being in sync.
//   - The codes of the plugins' errors stay as they are: the caller decides by them
//     whether to try again.
//
// It imports the SDK's kinds and the events. Plugins and workloads are functions
// that it is given.
package services

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Config is what a Registrar works with. All of it is needed.
type Config struct {
	// Node and the cluster's id are the mark on all that is registered. The id may have to be
	// waited for.
	Node      string
	ClusterID func(ctx context.Context) (string, error)
	// Consuls by the names of the agent's consul blocks.
	Consuls map[string]service.Consul
	// Registration runs fn with a client of the registration plugin, within the bound of
	// one call (catalog.Catalog.DoRegistration).
	Registration func(ctx context.Context, fn func(ctx context.Context, c registration.Registration) error) error
	// Bootstraps does so with the bootstrap plugin (catalog.Catalog.DoBootstrap).
	Bootstraps func(ctx context.Context, fn func(ctx context.Context, c bootstrap.Bootstrap) error) error
	// Instances are those of this node's workloads by Consul, which an earlier life of
	// the host may have registered. What goes through Register and Deregister is known
	// without it.
	Instances func() map[string][]registration.Instance
	// Beats are the health of the instances' processes now, by Consul.
	Beats  func() map[string][]registration.Beat
	Events *events.Bus
	Log    hclog.Logger
}

// ErrUnknownConsul says that the agent has no consul block of that name.
var ErrUnknownConsul = errcode.FailedPrecondition.New("unknown consul")

// Registrar puts services into the node's Consuls, takes them out, and keeps them so
// while Run runs.
type Registrar struct {
	cfg     Config
	keepers map[string]*keeper // by Consul; fixed
}

// New makes a registrar; Run keeps what is registered in sync.
func New(cfg Config) *Registrar {
	r := &Registrar{cfg: cfg, keepers: map[string]*keeper{}}
	for name, c := range cfg.Consuls {
		r.keepers[name] = newKeeper(r, name, c)
	}
	return r
}

// Check says whether the agent has a consul block of that name; empty is
// service.DefaultConsul. The error is ErrUnknownConsul and names those that there are.
func (r *Registrar) Check(consul string) error {
	_, err := r.keeper(consul)
	return err
}

func (r *Registrar) keeper(consul string) (*keeper, error) {
	if consul == "" {
		consul = service.DefaultConsul
	}
	if k := r.keepers[consul]; k != nil {
		return k, nil
	}
	block := fmt.Sprintf("consul %q", consul)
	if consul == service.DefaultConsul {
		block = "consul"
	}
	known := "it has none"
	if len(r.keepers) > 0 {
		known = "it has " + strings.Join(slices.Sorted(maps.Keys(r.keepers)), ", ")
	}
	return nil, fmt.Errorf("%w %q: the agent has no such consul block, %s: add `%s { address = \"127.0.0.1:8500\" }` to its configuration and restart it",
		ErrUnknownConsul, consul, known, block)
}

// owner waits until the cluster has an id.
func (r *Registrar) owner(ctx context.Context) (registration.Owner, error) {
	id, err := r.cfg.ClusterID(ctx)
	return registration.Owner{Cluster: id, Node: r.cfg.Node}, err
}

// Register makes Consul say what the instance says, and returns its proxy's id,
// empty where it has none. Owner is filled in. It may be repeated.
func (r *Registrar) Register(ctx context.Context, consul string, i registration.Instance) (proxyID string, err error) {
	k, err := r.keeper(consul)
	if err != nil {
		return "", err
	}
	if i.Owner, err = r.owner(ctx); err != nil {
		return "", err
	}
	if err := k.hold(ctx, i); err != nil {
		return "", err
	}
	err = r.cfg.Registration(ctx, func(ctx context.Context, c registration.Registration) (err error) {
		proxyID, err = c.Register(ctx, k.consul, i)
		return err
	})
	k.registered(i, err)
	return proxyID, err
}

// Deregister takes an instance out, with its sidecar; one that is not there is
// success. Where it fails, the sync goes on trying: the instance is none of this
// node's any more.
func (r *Registrar) Deregister(ctx context.Context, consul, id string) error {
	k, err := r.keeper(consul)
	if err != nil {
		return err
	}
	if err := k.letGo(ctx, id); err != nil {
		return err
	}
	return r.cfg.Registration(ctx, func(ctx context.Context, c registration.Registration) error {
		return c.Deregister(ctx, k.consul, id)
	})
}

// Bootstrap makes the file that a service's proxy is started with.
func (r *Registrar) Bootstrap(ctx context.Context, consul string, req bootstrap.Request) (file []byte, err error) {
	k, err := r.keeper(consul)
	if err != nil {
		return nil, err
	}
	err = r.cfg.Bootstraps(ctx, func(ctx context.Context, c bootstrap.Bootstrap) (err error) {
		file, err = c.Generate(ctx, k.consul, req)
		return err
	})
	return file, err
}

// Changed tells that Instances or Beats have changed: both are told to the Consuls
// again, soon. It does not block.
func (r *Registrar) Changed() {
	for _, k := range r.keepers {
		k.touch()
	}
}

// Problems say for each Consul what keeps its services from being in sync; empty:
// nothing does.
func (r *Registrar) Problems() map[string]string {
	all := map[string]string{}
	for name, k := range r.keepers {
		all[name] = k.problem()
	}
	return all
}

// Run keeps all Consuls in sync until ctx ends. What is registered then stays. A host
// without consul blocks has nothing to do, and needs no plugin.
func (r *Registrar) Run(ctx context.Context) {
	owner, err := r.owner(ctx)
	if err != nil {
		return // ctx has ended
	}
	var running sync.WaitGroup
	for _, k := range r.keepers {
		running.Go(func() { k.keep(ctx, owner) })
		running.Go(func() { k.beat(ctx) })
	}
	running.Wait()
}
