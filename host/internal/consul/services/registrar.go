// Package services keeps the services of this node's workloads registered in Consul, through the registration
// plugin, and lets the bootstrap plugin make their proxies' bootstraps. It knows the Consuls and the owner; a
// workload knows only the name of the agent's consul block.
//
// Invariants:
//
//   - A sync never removes an instance that is just being registered, and never restores one that is just being
//     deregistered: Register and Deregister take effect when they are called, and cancel a sync that uses the
//     old list.
//   - What another host has registered under an id is neither changed nor removed, nor what others have said about
//     callers of a service; it is reported once, as an event.
//   - A service with intentions is registered only while they are written.
//   - While nothing changes, a Consul gets only one blocking query after the other.
//   - An unreachable Consul is reported once, in the log and as an event, and retried with increasing pauses. It
//     does not delay the sync of other Consuls.
//   - The codes of the plugins' errors are kept: the caller uses them to decide whether to retry.
package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/refusal"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Config is the configuration of a Registrar. All fields are required.
type Config struct {
	// Node and the cluster's id mark all that is registered. The cluster's id may not be known at once.
	Node      string
	ClusterID func(ctx context.Context) (string, error)
	// Consuls are the agent's consul blocks by name.
	Consuls map[string]service.Consul
	// Served fails where it is certain that no plugin will do one of the steps of a service.
	Served func(*service.Service) error
	// Registration runs fn with a client of a Consul's registration plugin, within the deadline of one call
	// (catalog.Do).
	Registration func(ctx context.Context, consul string,
		fn func(ctx context.Context, c registration.Registration) error) error
	// Bootstraps is the same for the bootstrap plugin (catalog.Do).
	Bootstraps func(ctx context.Context, consul string, fn func(ctx context.Context, c bootstrap.Bootstrap) error) error
	// Instances returns the instances of this node's workloads by Consul, as earlier runs of the host may have
	// registered them. It need not include what goes through Register and Deregister.
	Instances func() map[string][]registration.Instance
	// Beats returns the current health of the instances' processes, by Consul.
	Beats func() map[string][]registration.Beat
	// Reconfigured is called when an instance's proxy has a configuration in a Consul whose digest differs from the one in
	// Instances.
	Reconfigured func(consul, id, digest string)
	Events       *events.Bus
	Log          hclog.Logger
}

// ErrUnknownConsul means that the agent has no consul block of that name.
var ErrUnknownConsul = errcode.FailedPrecondition.New("unknown consul")

// Registrar registers services in the node's Consuls, deregisters them, and keeps them in sync while Run runs.
type Registrar struct {
	cfg     Config
	keepers map[string]*keeper // by Consul; fixed
}

// New returns a Registrar. Run keeps what is registered in sync.
func New(cfg Config) *Registrar {
	r := &Registrar{cfg: cfg, keepers: map[string]*keeper{}}
	for name, c := range cfg.Consuls {
		r.keepers[name] = newKeeper(r, name, c)
	}
	return r
}

// Check checks that the agent has the service's consul block, and plugins for its steps. An empty name is
// service.DefaultConsul. The error is ErrUnknownConsul and lists the existing names, or Config.Served's.
func (r *Registrar) Check(s *service.Service) error {
	if !s.IdentityOnly {
		if _, err := r.keeper(s.Consul); err != nil {
			return err
		}
	}
	return r.cfg.Served(s)
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
	return nil, fmt.Errorf(
		"%w %q: the agent has no such consul block, %s: add `%s { address = \"127.0.0.1:8500\" }` to its configuration and restart it",
		ErrUnknownConsul, consul, known, block)
}

// owner waits until the cluster has an id.
func (r *Registrar) owner(ctx context.Context) (registration.Owner, error) {
	id, err := r.cfg.ClusterID(ctx)
	return registration.Owner{Cluster: id, Node: r.cfg.Node}, err
}

// forgetTimeout bounds the calls to one Consul for a node that is gone.
const forgetTimeout = 15 * time.Second

// Forget removes what a node of this cluster that is gone for good has left in this node's Consuls: its services, where
// the Consul agent is the same, and its part of services' intentions.
func (r *Registrar) Forget(ctx context.Context, node string) error {
	owner, err := r.owner(ctx)
	if err != nil {
		return err
	}
	owner.Node = node
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.keepers)) {
		k := r.keepers[name]
		ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
		err := r.cfg.Registration(ctx, k.name, func(ctx context.Context, c registration.Registration) error {
			_, changes, err := c.Sync(ctx, k.consul, registration.SyncRequest{Owner: owner})
			for _, c := range changes {
				k.event(string(c.Action), c.ID, fmt.Sprintf("%s was %s in Consul %q: node %q is gone for good", c.ID, c.Action,
					k.name, node))
			}
			return err
		})
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("consul %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// Register makes Consul match the instance, and returns the id of its proxy, empty if it has none. Owner is filled
// in. Register may be repeated.
func (r *Registrar) Register(ctx context.Context, consul string, i registration.Instance) (proxyID string, err error) {
	k, err := r.keeper(consul)
	if err != nil {
		return "", err
	}
	if i.Owner, err = r.owner(ctx); err != nil {
		return "", err
	}
	if err := k.hold(ctx, i); err != nil {
		k.registered(i, err)
		return "", err
	}
	err = r.cfg.Registration(ctx, k.name, func(ctx context.Context, c registration.Registration) (err error) {
		if len(i.Service.Intentions) > 0 { // first, so that nobody calls it without them
			if err := k.setIntentions(ctx, c, i); err != nil {
				return err
			}
		}
		if proxyID, err = c.Register(ctx, k.consul, i); err != nil && len(i.Service.Intentions) > 0 {
			return refusal.AfterEffect(err) // the intentions are written
		}
		return err
	})
	k.registered(i, err)
	return proxyID, err
}

// SetIntentions makes what Consul says about callers of a service include the instance's intentions, or none of them
// without any. Register does so itself for an instance with intentions.
func (r *Registrar) SetIntentions(ctx context.Context, consul string, i registration.Instance) (err error) {
	k, err := r.keeper(consul)
	if err != nil {
		return err
	}
	if i.Owner, err = r.owner(ctx); err != nil {
		return err
	}
	return r.cfg.Registration(ctx, k.name, func(ctx context.Context, c registration.Registration) error {
		return k.setIntentions(ctx, c, i)
	})
}

// setIntentions fails with FailedPrecondition if the plugin has no intentions: to register the service would let
// anybody call it.
func (k *keeper) setIntentions(ctx context.Context, c registration.Registration, i registration.Instance) error {
	err := status.Error(codes.Unimplemented, "")
	if able, ok := c.(registration.Intender); ok {
		err = able.SetIntentions(ctx, k.consul, i)
	}
	if status.Code(err) == codes.Unimplemented {
		return status.Errorf(codes.FailedPrecondition, "the registration plugin of Consul %q has no intentions: install a "+
			"newer one, or leave intentions out of service %q", k.name, i.Service.Name)
	}
	return err
}

// Deregister removes an instance with its sidecar. It succeeds if the instance does not exist, or is another owner's.
// If it fails, the sync keeps trying, because the instance no longer belongs to this node.
func (r *Registrar) Deregister(ctx context.Context, consul, id string) error {
	k, err := r.keeper(consul)
	if err != nil {
		return err
	}
	owner, err := r.owner(ctx)
	if err != nil {
		return err
	}
	if err := k.letGo(ctx, id); err != nil {
		return err
	}
	return r.cfg.Registration(ctx, k.name, func(ctx context.Context, c registration.Registration) error {
		return c.Deregister(ctx, k.consul, owner, id)
	})
}

// Bootstrap returns the file that a service's proxy starts with, and the files that it names.
func (r *Registrar) Bootstrap(ctx context.Context, consul string, req bootstrap.Request) (made bootstrap.Result,
	err error,
) {
	k, err := r.keeper(consul)
	if err != nil {
		return made, err
	}
	err = r.cfg.Bootstraps(ctx, k.name, func(ctx context.Context, c bootstrap.Bootstrap) (err error) {
		made, err = c.Generate(ctx, k.consul, req)
		return err
	})
	return made, err
}

// Changed is called after a change of Instances or Beats: both are sent to the Consuls again soon. It does not block.
func (r *Registrar) Changed() {
	for _, k := range r.keepers {
		k.touch()
	}
}

// Problems returns for each Consul what keeps its services from being in sync; empty if nothing does.
func (r *Registrar) Problems() map[string]string {
	all := map[string]string{}
	for name, k := range r.keepers {
		all[name] = k.problem()
	}
	return all
}

// Conflict says whose registration or intentions stand in the place of an instance's; empty: none.
func (r *Registrar) Conflict(consul, id string) string {
	k := r.keepers[consul]
	if k == nil {
		return ""
	}
	return cmp.Or(k.conflictOf(registration.Conflict, id), k.conflictOf(registration.IntentionsConflict, id))
}

// Run keeps all Consuls in sync until ctx ends. Services stay registered then. A host without consul blocks has
// nothing to do, and needs no plugin.
func (r *Registrar) Run(ctx context.Context) {
	owner, err := r.owner(ctx)
	if err != nil {
		return // ctx has ended
	}
	var running sync.WaitGroup
	for _, k := range r.keepers {
		running.Go(func() { k.keep(ctx, owner) })
		running.Go(func() { k.beat(ctx) })
		running.Go(func() { k.watchFiles(ctx) })
	}
	running.Wait()
}
