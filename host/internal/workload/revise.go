package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/sdk/service"
)

// revision is a changed spec on its way to the goroutine of a running workload. instance.mu guards
// all but wake.
type revision struct {
	asked    uint64 // counts the requests
	answered uint64 // the last request whose services were registered, or could not be
	err      error  // of the answer
	wake     chan struct{}
}

// fixed is the spec without what may change while the workload runs.
func fixed(s Spec) Spec {
	s.Canary, s.Units, s.ShutdownDelay = false, nil, ""
	s.Services = slices.Clone(s.Services)
	for n := range s.Services {
		v := &s.Services[n]
		v.Tags, v.CanaryTags, v.Meta, v.CanaryMeta = nil, nil, nil, nil
		v.Checks, v.Weights, v.EnableTagOverride, v.Intentions = nil, nil, false, nil
		v.Connect = fixedConnect(v.Connect)
	}
	return s
}

// fixedConnect is what of a service's part in the mesh may not change: what it is, and its proxy's admin API.
func fixedConnect(c *service.Connect) *service.Connect {
	if c == nil {
		return nil
	}
	fixed := &service.Connect{Native: c.Native, Admin: c.Admin}
	if c.SidecarService != nil {
		fixed.SidecarService = &service.SidecarService{}
	}
	if g := c.Gateway; g != nil {
		fixed.Gateway = &service.Gateway{Mesh: g.Mesh, API: g.API}
		if g.Ingress != nil {
			fixed.Gateway.Ingress = &service.Ingress{}
		}
		if g.Terminating != nil {
			fixed.Gateway.Terminating = &service.Terminating{}
		}
	}
	return fixed
}

// differences names the parts in which two specs differ and that may not change while the workload
// runs.
func differences(was, is Spec) string {
	was, is = fixed(was), fixed(is)
	var all []string
	for _, part := range []struct {
		name string
		a, b any
	}{
		{"volumes", was.Volumes, is.Volumes},
		{"exec", was.Exec, is.Exec},
		{
			"services (other than tags, meta, checks, weights, enable_tag_override, intentions, sidecar_service and a gateway's " +
				"proxy, listeners and services)",
			was.Services, is.Services,
		},
		{"ports", was.Ports, is.Ports},
		{"user", was.User, is.User},
		{"sidecars", was.Sidecars, is.Sidecars},
		{"devices", was.Devices, is.Devices},
		{"after", was.After, is.After},
		{"replaces", was.Replaces, is.Replaces},
	} {
		if !servicesteps.SameJSON(part.a, part.b) {
			all = append(all, part.name)
		}
	}
	return strings.Join(all, ", ")
}

// revise gives a running workload another spec and asks for the registration of its services. It
// returns the request to wait for.
func (m *Manager) revise(i *instance, spec Spec) (asked uint64, err error) {
	services, err := m.services.Resolve(spec.WorkloadRef, spec.Services, spec.Canary, i.rec.Ports)
	if err != nil {
		return 0, fmt.Errorf("%w %q: %w", specs.ErrInvalid, spec.ID, err)
	}
	holder, was := i.ref, Spec{}
	var added, removed []ports.Request
	swap := func(remakes int) {
		i.rec.Spec, was = spec, i.rec.Spec
		for n, s := range i.services {
			if s.Proxied() && !servicesteps.SameJSON(s.Service.Connect, services[n].Connect) {
				s.Remake += remakes
			}
			s.Service, services[n] = services[n], s.Service
		}
	}
	err = i.saveOr(func() error {
		was = i.rec.Spec
		added, removed = listenersWithout(&spec, &was), listenersWithout(&was, &spec)
		// Addresses that its proxy listens on by Consul's configuration are held already.
		added = slices.DeleteFunc(added, func(l ports.Request) bool { return m.Ports.Holds(holder, l) })
		if _, err := m.Ports.Take(holder, added...); err != nil {
			return err
		}
		swap(1)
		i.rec.Left = false
		return nil
	}, func(err error) {
		failpoint.Here("service", "revised")
		if err == nil {
			m.Ports.ReleaseListeners(holder, removed...)
			asked = i.askRevision()
			return
		}
		spec = was
		swap(-1)
		m.Ports.ReleaseListeners(holder, added...)
	})
	if err != nil {
		return 0, fmt.Errorf("change the spec of %s: %w", i, err)
	}
	return asked, nil
}

// listenersWithout are the listeners of a spec that another one does not have.
func listenersWithout(s, o *Spec) []ports.Request {
	others := listeners(o)
	return slices.DeleteFunc(listeners(s), func(l ports.Request) bool {
		return slices.ContainsFunc(others, func(r ports.Request) bool {
			return l.Static == r.Static && l.Address == r.Address
		})
	})
}

// pending reports that a service is outdated. i.mu is held.
func (i *instance) pending() bool { return slices.ContainsFunc(i.services, i.outdated) }

// outdated reports that a service is not registered as the spec has it, or that its bootstrap is to be made again;
// where the services have left the catalog, that it has not. i.mu is held.
func (i *instance) outdated(s *servicesteps.Service) bool {
	if i.rec.Left {
		return s.Registered != nil
	}
	return s.Stale() || s.Remake > 0
}

// askRevision wakes the workload's goroutine. i.mu is held.
func (i *instance) askRevision() uint64 {
	i.revision.asked++
	select {
	case i.revision.wake <- struct{}{}:
	default:
	}
	return i.revision.asked
}

// revised reports whether a request was answered, and its error.
func (i *instance) revised(asked uint64) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.revision.answered < asked {
		return false, nil
	}
	return true, i.revision.err
}

// keepRegistered registers the services whose spec has changed, on each request, makes the bootstraps again that may
// have changed with it or in Consul, and retries until that succeeds.
func (r *run) keepRegistered(ctx context.Context) {
	pause := r.m.limits.retry.Start()
	for {
		var retry <-chan time.Time
		if err := r.revise(ctx); err != nil {
			retry = time.After(pause.NextBackOff())
		} else {
			pause.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.revision.wake:
		case <-retry:
		}
	}
}

// revise brings the services that are outdated up to date, and answers the requests so far.
func (r *run) revise(ctx context.Context) error {
	r.mu.Lock()
	asked := r.revision.asked
	todo := slices.DeleteFunc(slices.Clone(r.services), func(s *servicesteps.Service) bool { return !r.outdated(s) })
	r.mu.Unlock()
	var registered atomic.Bool
	var all errgroup.Group
	for _, s := range todo {
		all.Go(func() error {
			again, err := r.reviseService(ctx, s)
			if again {
				registered.Store(true)
			}
			if ctx.Err() == nil {
				r.m.services.Report(s, servicesteps.Registering, err)
			}
			return err
		})
	}
	err := all.Wait()
	if ctx.Err() == nil { // otherwise it is being taken down
		r.Update(func() {
			r.revision.answered, r.revision.err = asked, err
			if r.rec.Left && len(todo) > 0 && err == nil {
				r.leftAt = time.Now()
			}
		})
	}
	if err == nil && registered.Load() {
		r.event("updated", "its services were registered as the changed spec has them")
	}
	return err
}

// reviseService registers a service as the spec has it now, and then makes its bootstrap again; or it removes it from
// the catalog.
func (r *run) reviseService(ctx context.Context, s *servicesteps.Service) (registered bool, err error) {
	var is, left bool
	r.View(func() { is, left = s.Stale(), r.rec.Left })
	register := actions[slices.IndexFunc(actions, func(a action) bool { return a.name == registerStep })]
	if left {
		return false, r.undo(ctx, register, serviceSubject(s))
	}
	if is {
		if err := r.do(ctx, register, serviceSubject(s)); err != nil {
			return false, err
		}
	}
	return is, r.m.services.Renew(ctx, s)
}
