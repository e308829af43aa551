package workload

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/vars"
	"github.com/pannier/pannier/sdk/service"
)

// resolve takes the ports that a new workload needs, and fills in what its record says
// of its services: all that can be wrong with them is found before anything is written.
// Whoever has an error from it, or goes no further, releases the ports.
func (m *Manager) resolve(rec *record) (err error) {
	spec := &rec.Spec
	fault := func(err error) error { return fmt.Errorf("%w %q: %w", ErrInvalid, spec.ID, err) }
	want := make([]ports.Request, 0, len(spec.Ports))
	for _, p := range spec.Ports {
		want = append(want, ports.Request{Label: p.Label, Static: p.Static})
	}
	for _, s := range spec.Services {
		if s.Proxied() {
			want = append(want, ports.Request{Label: s.Name + " admin"}, ports.Request{Label: s.Name + " ready"})
		}
	}
	if len(want) == 0 && len(spec.Services) == 0 {
		return nil
	}
	got, err := m.Ports.Take(holder(spec.WorkloadRef), want...)
	if err != nil {
		return fmt.Errorf("workload %q: %w", spec.WorkloadRef, err)
	}
	rec.Ports = map[string]int{}
	for n, p := range spec.Ports {
		rec.Ports[p.Label] = got[n]
	}
	own := got[len(spec.Ports):] // of proxies
	services, err := m.resolved(spec, rec.Ports)
	if err != nil {
		return fault(err)
	}
	inMesh := false
	for _, s := range services {
		if err := m.Services.Check(s.Consul); err != nil {
			return fmt.Errorf("workload %q: service %q: %w", spec.WorkloadRef, s.Name, err)
		}
		sr := &serviceRecord{Steps: map[string]progress{}, ID: serviceID(m.Node, spec.WorkloadRef, s.Name), Service: s}
		if s.Connect != nil {
			inMesh = true
			sr.Token = m.newToken(spec.WorkloadRef, s)
		}
		if s.Proxied() {
			sr.AdminPort, sr.ReadyPort, own = own[0], own[1], own[2:]
		}
		rec.Services = append(rec.Services, sr)
	}
	if !inMesh {
		return nil
	}
	if rec.UID, err = spec.uid(); err != nil {
		return fault(err)
	}
	return m.SecretsDir.Mount()
}

// holder names a workload to those who ask for its ports.
func holder(ref claim.WorkloadRef) string { return fmt.Sprintf("workload %q", ref) }

// resolved are the spec's services as Consul is told of them.
func (m *Manager) resolved(spec *Spec, numbers map[string]int) ([]service.Service, error) {
	values := map[string]string{
		"node.name": m.Node, "node.datacenter": m.Datacenter,
		"workload.id": spec.ID, "workload.namespace": spec.Namespace,
	}
	for label, n := range numbers {
		values["port."+label] = strconv.Itoa(n)
	}
	out := make([]service.Service, 0, len(spec.Services))
	var errs []error
	for _, s := range spec.Services {
		s, err := vars.Service(s, values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if spec.Canary {
			asCanary(&s)
		}
		s.CanaryTags, s.CanaryMeta = nil, nil
		if s.Consul == "" {
			s.Consul = service.DefaultConsul
		}
		for _, p := range portsOf(&s) {
			if n, ok := numbers[*p]; ok {
				*p = strconv.Itoa(n)
			}
		}
		out = append(out, s)
	}
	for _, p := range service.Validate(out, nil) { // a variable's value may be out of bounds
		errs = append(errs, p)
	}
	return out, errors.Join(errs...)
}

// asCanary puts what a canary bears in the place of what it bears otherwise.
func asCanary(s *service.Service) {
	if len(s.CanaryTags) > 0 {
		s.Tags = s.CanaryTags
	}
	if len(s.CanaryMeta) > 0 {
		s.Meta = s.CanaryMeta
	}
}

// portsOf are the places in a service where a port's label may stand.
func portsOf(s *service.Service) []*string {
	all := []*string{&s.Port}
	for n := range s.Checks {
		all = append(all, &s.Checks[n].Port)
	}
	if s.Connect == nil || s.Connect.SidecarService == nil {
		return all
	}
	sidecar := s.Connect.SidecarService
	all = append(all, &sidecar.Port)
	if sidecar.Proxy != nil && sidecar.Proxy.Expose != nil {
		for n := range sidecar.Proxy.Expose.Paths {
			all = append(all, &sidecar.Proxy.Expose.Paths[n].ListenerPort)
		}
	}
	return all
}

// number of a resolved port; 0: none.
func number(port string) int {
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	return n
}

// newToken is a token that nobody has heard of yet.
func (m *Manager) newToken(ref claim.WorkloadRef, s service.Service) claim.Token {
	return claim.Token{ID: newID(), Workload: ref, Node: m.Node, Service: s.Name, Consul: s.Consul}
}

// newID is a random UUID (RFC 9562, version 4).
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// uid of the user that owns the workload's secrets. A number need not be in the
// system's user database.
func (s *Spec) uid() (int, error) {
	name := s.User
	if name == "" && s.Exec != nil {
		name = s.Exec.User
	}
	if name == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("user %q, which is to own its secrets: %w", name, err)
	}
	return strconv.Atoi(u.Uid)
}
