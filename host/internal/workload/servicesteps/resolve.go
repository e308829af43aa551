package servicesteps

import (
	"errors"
	"strconv"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/system/vars"
	"github.com/pannier/pannier/sdk/service"
)

// Resolve returns a workload's services as they are registered: variables have values, labels of
// ports have numbers, and a canary has the tags and meta of one.
func (s *Steps) Resolve(ref claim.WorkloadRef, services []service.Service, canary bool,
	numbers map[string]int,
) ([]service.Service, error) {
	values := map[string]string{
		"node.name": s.Node, "node.datacenter": s.Datacenter,
		"workload.id": ref.ID, "workload.namespace": ref.Namespace,
		vars.SecretsDir: s.SecretsDir.Workload(secretsdir.Place{Namespace: ref.Namespace, Workload: ref.ID}),
	}
	for label, n := range numbers {
		values["port."+label] = strconv.Itoa(n)
	}
	out := make([]service.Service, 0, len(services))
	var errs []error
	for _, template := range services {
		svc, err := vars.Service(template, values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if canary {
			asCanary(&svc)
		}
		svc.CanaryTags, svc.CanaryMeta = nil, nil
		if svc.Consul == "" {
			svc.Consul = service.DefaultConsul
		}
		for _, p := range portsOf(&svc) {
			if n, ok := numbers[*p]; ok {
				*p = strconv.Itoa(n)
			}
		}
		for _, p := range labelledPorts(&svc) {
			if n, ok := numbers[*p.label]; ok {
				*p.number, *p.label = int32(n), ""
			}
		}
		out = append(out, svc)
	}
	for n := range out {
		if err := s.checkReach(&out[n]); err != nil {
			errs = append(errs, err)
		}
	}
	for _, p := range service.Validate(out, nil) { // the value of a variable may be out of bounds
		errs = append(errs, p)
	}
	return out, errors.Join(errs...)
}

// asCanary replaces the service's tags and meta by the canary's, where it has any.
func asCanary(s *service.Service) {
	if len(s.CanaryTags) > 0 {
		s.Tags = s.CanaryTags
	}
	if len(s.CanaryMeta) > 0 {
		s.Meta = s.CanaryMeta
	}
}

// portsOf returns the fields of a service that may hold a port's label.
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

// labelledPort is a port of a service that has a number and, in its place, a label.
type labelledPort struct {
	number *int32
	label  *string
}

func labelledPorts(s *service.Service) (all []labelledPort) {
	upstreams := s.Upstreams()
	for n := range upstreams {
		all = append(all, labelledPort{&upstreams[n].LocalBindPort, &upstreams[n].LocalBindPortLabel})
	}
	if s.Connect == nil || s.Connect.SidecarService == nil || s.Connect.SidecarService.Proxy == nil {
		return all
	}
	proxy := s.Connect.SidecarService.Proxy
	all = append(all, labelledPort{&proxy.LocalServicePort, &proxy.LocalServicePortLabel})
	if proxy.Expose != nil {
		for n := range proxy.Expose.Paths {
			path := &proxy.Expose.Paths[n]
			all = append(all, labelledPort{&path.LocalPathPort, &path.LocalPathPortLabel})
		}
	}
	return all
}

// number is the number of a resolved port; 0: none.
func number(port string) int {
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	return n
}
