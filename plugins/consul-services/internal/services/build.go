package services

import (
	"maps"
	"net"
	"strconv"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// sidecarSuffix makes a sidecar's id and its name of its service's, as Consul does.
const sidecarSuffix = "-sidecar-proxy"

// The keys of the marks in a service's Meta.
const (
	markSource    = "external-source" // Consul's convention: its UI shows it
	markCluster   = "pannier-cluster"
	markNode      = "pannier-node"
	markNamespace = "pannier-namespace"
	markWorkload  = "pannier-workload"
)

// wanted is what Consul should have of one instance.
type wanted struct {
	instance registration.Instance
	// registration has its sidecar nested in it.
	registration *api.AgentServiceRegistration
	sidecar      *api.AgentServiceRegistration // nil: none
}

// want makes what Consul should have. It fails with InvalidArgument where the instance
// says what cannot be.
func want(i registration.Instance) (*wanted, error) {
	r, err := build(i)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "service %q of workload %q in namespace %q: %v", i.Service.Name, i.Workload, i.Namespace, err)
	}
	w := &wanted{instance: i, registration: r}
	if r.Connect != nil {
		w.sidecar = r.Connect.SidecarService
	}
	return w, nil
}

// proxyID is the id of the proxy that stands for the instance; empty: none.
func (w *wanted) proxyID() string {
	switch {
	case w.sidecar != nil:
		return w.instance.ID + sidecarSuffix
	case w.registration.Proxy != nil:
		return w.instance.ID
	}
	return ""
}

// parts are the services that Consul has of it, by id.
func (w *wanted) parts() map[string]*api.AgentServiceRegistration {
	parts := map[string]*api.AgentServiceRegistration{w.instance.ID: w.registration}
	if w.sidecar != nil {
		parts[w.instance.ID+sidecarSuffix] = w.sidecar
	}
	return parts
}

func build(i registration.Instance) (*api.AgentServiceRegistration, error) {
	s := i.Service
	port, err := number("port", s.Port)
	if err != nil {
		return nil, err
	}
	tagged, err := taggedAddresses(s.TaggedAddresses, port)
	if err != nil {
		return nil, err
	}
	checks, err := buildChecks(i.ID, &s, port)
	if err != nil {
		return nil, err
	}
	r := &api.AgentServiceRegistration{
		ID:                i.ID,
		Name:              s.Name,
		Tags:              s.Tags,
		Port:              port,
		Address:           s.Address,
		TaggedAddresses:   tagged,
		EnableTagOverride: s.EnableTagOverride,
		Meta:              marked(i, s.Meta),
		Weights:           weights(s.Weights),
		Checks:            checks,
	}
	switch connect := s.Connect; {
	case connect == nil:
	case connect.Native:
		r.Connect = &api.AgentServiceConnect{Native: true}
	case connect.SidecarService != nil:
		sidecar, err := buildSidecar(i, r)
		if err != nil {
			return nil, err
		}
		r.Connect = &api.AgentServiceConnect{SidecarService: sidecar}
	case connect.Gateway != nil:
		r.Kind = gatewayKind(connect.Gateway)
		if r.Proxy, err = gatewayProxy(connect.Gateway.Proxy); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// marked adds the owner's marks to a service's meta.
func marked(i registration.Instance, meta map[string]string) map[string]string {
	out := maps.Clone(meta)
	if out == nil {
		out = map[string]string{}
	}
	out[markSource] = "pannier"
	out[markCluster] = i.Owner.Cluster
	out[markNode] = i.Owner.Node
	out[markNamespace] = i.Namespace
	out[markWorkload] = i.Workload
	return out
}

// owns says whether a service bears the marks of owner.
func owns(owner registration.Owner, meta map[string]string) bool {
	return meta[markSource] == "pannier" && meta[markCluster] == owner.Cluster && meta[markNode] == owner.Node
}

// weights has Consul's default, 1 for each.
func weights(w *service.Weights) *api.AgentWeights {
	if w == nil {
		return &api.AgentWeights{Passing: 1, Warning: 1}
	}
	return &api.AgentWeights{Passing: max(1, int(w.Passing)), Warning: int(w.Warning)}
}

// taggedAddresses reads addresses that may have a port of their own, as Nomad's do.
func taggedAddresses(in map[string]string, port int) (map[string]api.ServiceAddress, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := map[string]api.ServiceAddress{}
	for tag, address := range in {
		host, own, err := net.SplitHostPort(address)
		if err != nil {
			out[tag] = api.ServiceAddress{Address: address, Port: port}
			continue
		}
		n, err := number("port of the tagged address "+strconv.Quote(tag), own)
		if err != nil {
			return nil, err
		}
		out[tag] = api.ServiceAddress{Address: host, Port: n}
	}
	return out, nil
}
