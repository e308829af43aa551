package workload

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/sdk/service"
)

// Options of a start.
type Options struct {
	// Owner is the process whose end releases the workload; without a PID: none.
	Owner process.Ref
	// MountedAt is an absolute, clean path of the host: the workload goes on after the owner's end as long as a volume of
	// it is mounted there; empty: it does not.
	MountedAt string
	// Token is the secret of the caller's ACL token, which the leader checks too; empty: there is none. It is kept in
	// memory until the workload runs.
	Token string
	// Update changes a workload that runs on this node, whoever runs it, and starts none. The program and the owner stay
	// as they are.
	Update bool
	// Progress is called with every change of a step; it may be nil.
	Progress func(Step)
}

// Start brings a workload up and returns when it runs, or when a failed start has been undone
// (ErrFailed) or could not be undone at once. It continues when ctx ends.
//
// The start of a workload that runs or starts with the same specification joins it. Where the
// specification of a running workload differs in no more than its services' tags, meta, checks,
// weights, enable_tag_override, intentions, sidecars, and proxies, listeners and services of gateways,
// or in canary, they are registered again in place, and their bootstraps made again; an error of that
// is retried too, and the workload runs on.
func (m *Manager) Start(ctx context.Context, spec Spec, opts Options) (Workload, error) {
	if err := spec.Validate(); err != nil {
		return Workload{}, err
	}
	for {
		i, asked, err := m.begin(spec, opts, trace.SpanFromContext(ctx)) //nolint:contextcheck // observing a process waits for nothing
		if errors.Is(err, errReleasing) {
			if err := m.awaitReleased(ctx, i, opts.Progress); err != nil {
				return i.snapshot(), fmt.Errorf("%w: %s", err, i.releasing())
			}
			continue
		}
		if err != nil {
			return Workload{}, err
		}
		var unregistered error
		w, err := m.follow(ctx, i, opts.Progress, func(s State, waits bool) bool {
			answered, err := i.revised(asked)
			unregistered = err
			// It runs, or the start was undone, or the undo has to wait.
			return s == Running && answered || s.Ended() || s == Stopping && waits
		})
		if err == nil {
			err = i.startError(w)
		}
		if err == nil && unregistered != nil {
			err = fmt.Errorf("%s runs on, but not with the changed spec yet: %w", i, unregistered)
		}
		return w, err
	}
}

// errReleasing: an earlier run of the workload is being stopped, and not released yet.
var errReleasing = errors.New("the workload is being released")

// begin finds the workload or makes it, with its record in the journal. Where a changed spec has
// to be registered first, asked is the revision to wait for.
func (m *Manager) begin(spec Spec, opts Options, span trace.Span) (i *instance, asked uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, 0, ErrClosed
	}
	i, _ = m.known.find(spec.WorkloadRef)
	if opts.Update && (i == nil || isClosed(i.stop) || i.snapshot().State.over()) {
		return nil, 0, fmt.Errorf("workload %q: %w: it does not run on node %q: pannier workload start", spec.WorkloadRef,
			ErrNotFound, m.Node)
	}
	if i != nil {
		switch s := i.snapshot(); {
		case s.State == Stopping || !s.State.Ended() && isClosed(i.stop):
			return i, 0, errReleasing
		case !s.State.Ended():
			asked, err := m.join(i, s, spec, opts)
			if err == nil && s.State != Running && opts.Token != "" {
				i.caller.SetToken(opts.Token)
			}
			return i, asked, err
		}
	}
	if !isClosed(m.reconciled) {
		return nil, 0, fmt.Errorf("workload %q: %w", spec.WorkloadRef, ErrNotReconciled)
	}
	if m.draining != "" {
		return nil, 0, fmt.Errorf("workload %q: node %q: %w: %s", spec.WorkloadRef, m.Node, claim.ErrIneligible, m.draining)
	}
	if i, err = m.make(spec, opts); err != nil {
		m.Ports.Release(spec.WorkloadRef)
		return nil, 0, err
	}
	i.caller.SetToken(opts.Token)
	i.span = span
	failpoint.Here("workload", "begun")
	m.known.add(i)
	m.live.Go(func() { (&run{m, i}).live(m.ctx) })
	return i, 0, nil
}

// join is the start of a workload that exists, with status s.
func (m *Manager) join(i *instance, s Workload, spec Spec, opts Options) (asked uint64, err error) {
	owner := opts.Owner.PID
	if opts.Update { // a program may be from the command line of pannier workload run
		owner, spec.Exec = s.OwnerPID, s.Spec.Exec
	}
	same := s.Spec.Equal(spec)
	if differs := differences(s.Spec, spec); differs != "" {
		return 0, fmt.Errorf("workload %q: %w: other %s; stop it first: pannier workload stop %s", spec.WorkloadRef,
			ErrConflict, differs, spec.ID)
	}
	if s.OwnerPID != owner {
		return 0, fmt.Errorf("workload %q: %w: it belongs to %s, this call to %s; stop it first: pannier workload stop %s",
			spec.WorkloadRef, ErrConflict, whose(s.OwnerPID), whose(owner), spec.ID)
	}
	if !same && s.State != Running {
		return 0, fmt.Errorf("workload %q: %w and is not up yet: its services can be changed once it runs", spec.WorkloadRef,
			ErrConflict)
	}
	if !same {
		return m.revise(i, spec)
	}
	i.View(func() {
		if s.State == Running && (i.rec.Left || i.pending()) {
			i.rec.Left = false // the journal gets it with the registration
			asked = i.askRevision()
		}
	})
	return asked, nil
}

// make makes a new workload, with its record in the journal. After an error the caller releases
// its ports.
func (m *Manager) make(spec Spec, opts Options) (*instance, error) {
	rec := record{
		Spec: spec, State: Starting, BootID: m.bootID, RunID: rand.Text(), StartedAt: time.Now().UTC(),
		StartedOn: boottime.Now(), Steps: map[string]step.Progress{}, MountedAt: opts.MountedAt,
	}
	for _, v := range spec.Volumes {
		rec.Volumes = append(rec.Volumes, volumesteps.NewRecord(spec.WorkloadRef, rec.RunID, v))
	}
	identified, err := m.resolve(&rec)
	if err == nil && identified {
		err = m.SecretsDir.Mount()
	}
	if err != nil {
		return nil, err
	}
	i := m.instance(rec)
	if opts.Owner.PID != 0 {
		p, err := process.Find(m.ctx, opts.Owner)
		if err != nil {
			return nil, fmt.Errorf("observe the owner of %s: %w", i, err)
		}
		ref := p.Ref()
		i.owner, i.rec.Owner = p, &ref
	}
	if err := i.Save(func() {}); err != nil {
		i.releaseProcesses()
		return nil, fmt.Errorf("begin %s: %w", i, err)
	}
	return i, nil
}

func whose(owner int) string {
	if owner == 0 {
		return "no process (pannier workload start)"
	}
	return fmt.Sprintf("process %d", owner)
}

// resolve takes the ports that a new workload needs, and makes the records of its services: every
// fault in them is found before anything is written. identified: it will have secrets. After an error the caller
// releases the ports.
func (m *Manager) resolve(rec *record) (identified bool, err error) {
	spec := &rec.Spec
	fault := func(err error) error { return fmt.Errorf("%w %q: %w", specs.ErrInvalid, spec.ID, err) }
	want := make([]ports.Request, 0, len(spec.Ports))
	for _, p := range spec.Ports {
		want = append(want, ports.Request{Label: p.Label, Static: p.Static})
	}
	for _, s := range spec.Services {
		if s.Proxied() && s.Connect.Admin == service.AdminTCP {
			want = append(want, ports.Request{Label: s.Name + " admin"}, ports.Request{Label: s.Name + " ready"})
		}
	}
	own := len(want)
	if own == 0 && len(spec.Services) == 0 {
		return false, nil
	}
	want = append(want, listeners(spec)...)
	got, err := m.Ports.Take(spec.WorkloadRef, want...)
	if err != nil {
		return false, fmt.Errorf("workload %q: %w", spec.WorkloadRef, err)
	}
	rec.Ports = map[string]int{}
	for n, p := range spec.Ports {
		rec.Ports[p.Label] = got[n]
	}
	proxies := got[len(spec.Ports):own]
	services, err := m.services.Resolve(spec.WorkloadRef, spec.Services, spec.Canary, rec.Ports)
	if err != nil {
		return false, fault(err)
	}
	for _, s := range services {
		if err := m.Services.Check(&s); err != nil {
			return false, fmt.Errorf("workload %q: service %q: %w", spec.WorkloadRef, s.Name, err)
		}
		sr := m.services.NewRecord(spec.WorkloadRef, s)
		identified = identified || s.Identified()
		if s.Proxied() && s.Connect.Admin == service.AdminTCP {
			m.log.Warn("every local user reaches the admin API of a proxy, which shows its token: leave out connect { admin }",
				"workload", spec.WorkloadRef, "service", s.Name)
			sr.AdminPort, sr.ReadyPort, proxies = proxies[0], proxies[1], proxies[2:]
		}
		rec.Services = append(rec.Services, sr)
	}
	if !identified {
		return false, nil
	}
	if rec.UID, err = spec.UID(); err != nil {
		return false, fault(err)
	}
	return true, nil
}

// listeners are the ports on which the proxies of the services listen, where the spec has numbers. Envoys share a port
// that two of them have, and each then gets connections of the other. One that is a port of the workload is taken as
// that.
func listeners(s *Spec) (all []ports.Request) {
	for n := range s.Services {
		all = append(all, proxyListeners(&s.Services[n])...)
	}
	return slices.DeleteFunc(all, func(l ports.Request) bool {
		return slices.ContainsFunc(s.Ports, func(p specs.Port) bool { return p.Static == l.Static })
	})
}

func proxyListeners(s *service.Service) (all []ports.Request) {
	listen := func(what, address, port string) {
		if n, err := strconv.Atoi(port); err == nil && n > 0 { // else it is a label, or Consul picks one
			all = append(all, ports.Request{Label: s.Name + " " + what, Static: n, Address: cmp.Or(address, "0.0.0.0")})
		}
	}
	for _, u := range s.Upstreams() {
		listen("upstream "+u.DestinationName, cmp.Or(u.LocalBindAddress, "127.0.0.1"), fmt.Sprint(u.LocalBindPort))
	}
	if s.Connect == nil {
		return all
	}
	var config map[string]any
	if sidecar := s.Connect.SidecarService; sidecar != nil {
		listen("sidecar", "", sidecar.Port)
		if sidecar.Proxy != nil {
			config = sidecar.Proxy.Config
			if sidecar.Proxy.Expose != nil {
				for _, p := range sidecar.Proxy.Expose.Paths {
					listen("exposed path "+p.Path, "", p.ListenerPort)
				}
			}
		}
	}
	if gateway := s.Connect.Gateway; gateway != nil {
		if (gateway.Mesh != nil || gateway.Terminating != nil) && !bindsOnly(gateway.Proxy, s.Port) {
			listen("gateway", s.Address, s.Port)
		}
		if gateway.Ingress != nil {
			for _, l := range gateway.Ingress.Listeners {
				listen("ingress listener", "", fmt.Sprint(l.Port))
			}
		}
		if gateway.Proxy != nil {
			config = gateway.Proxy.Config
			for name, b := range gateway.Proxy.EnvoyGatewayBindAddresses {
				listen("bind address "+name, b.Address, fmt.Sprint(b.Port))
			}
		}
	}
	for _, key := range []string{"envoy_prometheus_bind_addr", "envoy_stats_bind_addr"} {
		text, _ := config[key].(string)
		if host, port, err := net.SplitHostPort(text); err == nil {
			listen(key, host, port)
		}
	}
	return all
}

// bindsOnly reports whether a gateway listens on its service's port on the addresses of its proxy alone.
func bindsOnly(p *service.GatewayProxy, port string) bool {
	if p == nil {
		return false
	}
	for _, b := range p.EnvoyGatewayBindAddresses {
		if fmt.Sprint(b.Port) == port {
			return true
		}
	}
	return p.EnvoyGatewayNoDefaultBind
}

// awaitReleased waits until nothing is left of an earlier run, and reports what that waits for.
func (m *Manager) awaitReleased(ctx context.Context, i *instance, progress func(Step)) error {
	step := Step{Name: awaitStep, State: StepRunning, StartedAt: time.Now(), Attempt: 1}
	report := func() {
		if step.Took = time.Since(step.StartedAt); progress != nil {
			progress(step)
		}
	}
	for {
		_, _, _, _, changed := i.since(0)
		if note := i.releasing(); note != step.Note {
			step.Note = note
			report()
		}
		select {
		case <-changed:
		case <-i.ended:
			step.State, step.Note = StepDone, ""
			report()
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.ctx.Done():
			return ErrClosed
		}
	}
}
