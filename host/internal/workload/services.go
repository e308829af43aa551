package workload

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Registered are the services of this node's workloads, as Consul is to have them.
type Registered struct {
	known    *table
	services *servicesteps.Steps
	log      hclog.Logger
}

// Instances are the services of this node's workloads as they were last registered in Consul, by
// the name of the agent's consul block. Owner is not filled in.
func (r *Registered) Instances() map[string][]registration.Instance {
	out := map[string][]registration.Instance{}
	for _, i := range r.known.all() {
		i.eachRegistered(func(s *servicesteps.Service) {
			out[s.Consul] = append(out[s.Consul], s.Instance())
		})
	}
	return out
}

// Reconfigured is called when Consul's configuration of a service's proxy, with what the proxy-defaults add, has
// another digest than Instances says. The bootstrap is made again, unless it will be made with this configuration
// anyway, or a host that knew no digests has made it: a new host restarts no proxy.
func (r *Registered) Reconfigured(consul, id, digest string) {
	for _, i := range r.known.all() {
		var changed *servicesteps.Service
		var before string
		i.eachRegistered(func(s *servicesteps.Service) {
			if s.Consul != consul || s.ID != id || s.ProxyDigest == digest {
				return
			}
			before, s.ProxyDigest = s.ProxyDigest, digest
			if before != "" || !i.resumed && len(s.BootstrapSums) > 0 { // else the journal gets it with the next write
				changed = s
			}
		})
		if changed == nil {
			continue
		}
		err := i.saveOr(func() error { changed.Remake++; return nil }, func(err error) {
			if err != nil {
				changed.ProxyDigest = before // it is reported again
				changed.Remake--
			}
		})
		if err != nil {
			r.log.Warn("the journal cannot be written; a change of a proxy's configuration is not taken over yet", "workload",
				i.ref, "service", changed.Name, "error", err)
			continue
		}
		failpoint.Here("service", "reconfigured")
		i.View(func() { i.askRevision() })
	}
}

// Beats are the health of the processes behind the services that have a check of the type process,
// by the name of the agent's consul block.
func (r *Registered) Beats() map[string][]registration.Beat {
	out := map[string][]registration.Beat{}
	for _, i := range r.known.all() {
		i.eachRegistered(func(s *servicesteps.Service) {
			if checksProcess(s.Registered) {
				out[s.Consul] = append(out[s.Consul], i.beat(s))
			}
		})
	}
	return out
}

// eachRegistered calls fn with the registered services of a workload that starts or runs. fn is
// called under i.mu.
func (i *instance) eachRegistered(fn func(s *servicesteps.Service)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.rec.State != Starting && i.rec.State != Running {
		return
	}
	for _, s := range i.services {
		if s.Registered != nil {
			fn(s)
		}
	}
}

func checksProcess(s *service.Service) bool {
	for _, c := range s.Checks {
		if c.Type == service.CheckProcess {
			return true
		}
	}
	return false
}

// beat is the health of the workload's process. i.mu is held.
func (i *instance) beat(s *servicesteps.Service) registration.Beat {
	b := registration.Beat{ID: s.ID}
	switch {
	case i.process == nil:
		b.Output = "no process of the workload is known yet"
	case isClosed(i.process.Done()):
		b.Output = fmt.Sprintf("process %d has ended", i.process.PID())
	default:
		b.Healthy, b.Output = true, fmt.Sprintf("process %d lives", i.process.PID())
	}
	return b
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// InspectTokens asks Consul about the tokens of a workload's services, at the same time.
func (m *Manager) InspectTokens(ctx context.Context, ref claim.WorkloadRef) ([]servicesteps.Inspection, error) {
	i, err := m.known.find(ref)
	if err != nil {
		return nil, err
	}
	var identified []*servicesteps.Service
	for _, s := range i.services {
		if s.Identified() {
			identified = append(identified, s)
		}
	}
	found := make([]servicesteps.Inspection, len(identified))
	var all sync.WaitGroup
	for n, s := range identified {
		all.Go(func() { found[n] = m.services.Inspect(ctx, s) })
	}
	all.Wait()
	return found, nil
}
