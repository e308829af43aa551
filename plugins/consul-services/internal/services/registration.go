package services

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// sidecarSuffix is the suffix of a sidecar's id and name, as in Consul.
const sidecarSuffix = "-sidecar-proxy"

// The keys of the marks in a service's Meta.
const (
	markSource    = "external-source" // Consul's convention, which its UI shows
	markCluster   = "pannier-cluster"
	markNode      = "pannier-node"
	markNamespace = "pannier-namespace"
	markWorkload  = "pannier-workload"
	markToken     = "pannier-token" // the accessor of the host's token
)

// wanted is what Consul should have of one instance.
type wanted struct {
	instance registration.Instance
	// registration contains its sidecar.
	registration *api.AgentServiceRegistration
	sidecar      *api.AgentServiceRegistration // nil: none
}

// want returns what Consul should have of an instance. It fails with InvalidArgument if the instance is invalid.
func want(i registration.Instance) (*wanted, error) {
	r, err := build(i)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "service %q of workload %q in namespace %q: %v", i.Service.Name,
			i.Workload, i.Namespace, err)
	}
	w := &wanted{instance: i, registration: r}
	if r.Connect != nil {
		w.sidecar = r.Connect.SidecarService
	}
	return w, nil
}

// markToken marks the parts with the token that they are registered with: Consul's agent uses it as long as they are
// registered, so that another token registers them again.
func (w *wanted) markToken(accessor string) {
	for _, part := range w.parts() {
		if accessor != "" {
			part.Meta[markToken] = accessor
		}
	}
}

// proxyID returns the id of the instance's proxy; empty: none.
func (w *wanted) proxyID() string {
	switch {
	case w.sidecar != nil:
		return w.instance.ID + sidecarSuffix
	case w.registration.Proxy != nil:
		return w.instance.ID
	}
	return ""
}

// parts returns the services that make up the instance in Consul, by id.
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

// marked returns a service's meta with the owner's marks.
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

// owns reports whether a service has the owner's marks.
func owns(owner registration.Owner, meta map[string]string) bool {
	return meta[markSource] == "pannier" && meta[markCluster] == owner.Cluster && meta[markNode] == owner.Node
}

// foreign reports whether a service has the marks of another owner. One without any has lost this node's, which its id
// names.
func foreign(owner registration.Owner, meta map[string]string) bool {
	return meta[markCluster] != "" && (meta[markCluster] != owner.Cluster || meta[markNode] != owner.Node)
}

// conflict says whose service is in the way, and what to do.
func conflict(owner registration.Owner, have *api.AgentService) string {
	return fmt.Sprintf("node %q of the cluster %s has registered it, and this is node %q of the cluster %s: give one of "+
		"the two another name, or a Consul agent of its own. If that one is gone for good, for example since this host was "+
		"set up anew: consul services deregister -id=%s",
		have.Meta[markNode], have.Meta[markCluster], owner.Node, owner.Cluster, have.ID)
}

// weights returns the weights, by default 1 each as in Consul.
func weights(w *service.Weights) *api.AgentWeights {
	if w == nil {
		return &api.AgentWeights{Passing: 1, Warning: 1}
	}
	return &api.AgentWeights{Passing: max(1, int(w.Passing)), Warning: int(w.Warning)}
}

// taggedAddresses parses addresses that may have their own port, as in Nomad.
func taggedAddresses(in map[string]string, port int) (map[string]api.ServiceAddress, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := map[string]api.ServiceAddress{}
	for tag, address := range in {
		host, own, err := net.SplitHostPort(address)
		if err != nil {
			bare := strings.TrimSuffix(strings.TrimPrefix(address, "["), "]") // of an IPv6 address
			out[tag] = api.ServiceAddress{Address: bare, Port: port}
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

// defaultLocalAddress is where a sidecar reaches its service.
const defaultLocalAddress = "127.0.0.1"

// buildSidecar builds the sidecar's registration. It fills in what Consul would, so that the two can be compared,
// except the sidecar's id, an empty port, and the default checks, which need that port.
func buildSidecar(i registration.Instance, of *api.AgentServiceRegistration) (*api.AgentServiceRegistration, error) {
	s := i.Service.Connect.SidecarService
	port, err := number("sidecar_service port", s.Port)
	if err != nil {
		return nil, err
	}
	proxy, err := sidecarProxy(s.Proxy, of)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(i.Service.Checks, func(c service.Check) bool { return c.Expose }) {
		proxy.Expose.Checks = true
	}
	r := &api.AgentServiceRegistration{
		Kind:    api.ServiceKindConnectProxy,
		Name:    of.Name + sidecarSuffix,
		Tags:    s.Tags,
		Port:    port,
		Address: of.Address,
		Weights: weights(nil),
		Meta:    marked(i, s.Meta),
		Proxy:   proxy,
	}
	if len(s.Tags) == 0 {
		r.Tags = i.Service.Tags
	}
	if len(s.Meta) == 0 {
		r.Meta = of.Meta
	}
	if s.DisableDefaultTCPCheck {
		r.Checks = api.AgentServiceChecks{{
			CheckID: checkPrefix(i.ID+sidecarSuffix) + ":alias", Name: aliasCheckName(i.ID), AliasService: i.ID,
		}}
	}
	return r, nil
}

// aliasCheckName returns the name that Consul gives to that check.
func aliasCheckName(id string) string { return "Connect Sidecar Aliasing " + id }

func sidecarProxy(p *service.Proxy, of *api.AgentServiceRegistration) (*api.AgentServiceConnectProxyConfig, error) {
	out := &api.AgentServiceConnectProxyConfig{
		DestinationServiceName: of.Name,
		DestinationServiceID:   of.ID,
		LocalServiceAddress:    defaultLocalAddress,
		LocalServicePort:       of.Port,
	}
	if p == nil {
		return out, nil
	}
	if p.LocalServiceAddress != "" {
		out.LocalServiceAddress = p.LocalServiceAddress
	}
	if p.LocalServicePort != 0 {
		out.LocalServicePort = int(p.LocalServicePort)
	}
	out.Config = p.Config
	out.MeshGateway = meshGateway(p.MeshGateway)
	for _, u := range p.Upstreams {
		out.Upstreams = append(out.Upstreams, upstream(&u))
	}
	if p.Expose != nil {
		out.Expose.Checks = p.Expose.Checks
		for _, path := range p.Expose.Paths {
			listener, err := number("listener_port of the exposed path "+path.Path, path.ListenerPort)
			if err != nil {
				return nil, err
			}
			out.Expose.Paths = append(out.Expose.Paths, api.ExposePath{
				Path: path.Path, Protocol: path.Protocol, LocalPathPort: int(path.LocalPathPort), ListenerPort: listener,
			})
		}
	}
	return out, nil
}

func upstream(u *service.Upstream) api.Upstream {
	kind := u.DestinationType
	if kind == "" {
		kind = string(api.UpstreamDestTypeService)
	}
	return api.Upstream{
		DestinationType:      api.UpstreamDestType(kind),
		DestinationName:      u.DestinationName,
		DestinationNamespace: u.DestinationNamespace,
		DestinationPartition: u.DestinationPartition,
		DestinationPeer:      u.DestinationPeer,
		Datacenter:           u.Datacenter,
		LocalBindAddress:     u.LocalBindAddress,
		LocalBindPort:        int(u.LocalBindPort),
		LocalBindSocketPath:  u.LocalBindSocketPath,
		LocalBindSocketMode:  u.LocalBindSocketMode,
		MeshGateway:          meshGateway(u.MeshGateway),
		Config:               u.Config,
	}
}

func meshGateway(m *service.MeshGateway) api.MeshGatewayConfig {
	if m == nil {
		return api.MeshGatewayConfig{}
	}
	return api.MeshGatewayConfig{Mode: api.MeshGatewayMode(m.Mode)}
}

func gatewayKind(g *service.Gateway) api.ServiceKind {
	switch {
	case g.Ingress != nil:
		return api.ServiceKindIngressGateway
	case g.Terminating != nil:
		return api.ServiceKindTerminatingGateway
	case g.API != nil:
		return api.ServiceKindAPIGateway
	}
	return api.ServiceKindMeshGateway
}

// gatewayProxy translates the gateway's proxy settings, which are Nomad's, to the keys of Consul's Envoy
// configuration. A key in Config has priority.
func gatewayProxy(p *service.GatewayProxy) (*api.AgentServiceConnectProxyConfig, error) {
	config := map[string]any{}
	if p == nil {
		return &api.AgentServiceConnectProxyConfig{Config: config}, nil
	}
	if p.ConnectTimeout != "" {
		timeout, err := time.ParseDuration(p.ConnectTimeout)
		if err != nil {
			return nil, fmt.Errorf("gateway proxy: connect_timeout %q is not a duration", p.ConnectTimeout)
		}
		config["connect_timeout_ms"] = timeout.Milliseconds()
	}
	if p.EnvoyGatewayBindTaggedAddresses {
		config["envoy_gateway_bind_tagged_addresses"] = true
	}
	if len(p.EnvoyGatewayBindAddresses) > 0 {
		binds := map[string]any{}
		for name, b := range p.EnvoyGatewayBindAddresses {
			binds[name] = map[string]any{"address": b.Address, "port": b.Port}
		}
		config["envoy_gateway_bind_addresses"] = binds
	}
	if p.EnvoyGatewayNoDefaultBind {
		config["envoy_gateway_no_default_bind"] = true
	}
	if p.EnvoyDNSDiscoveryType != "" {
		config["envoy_dns_discovery_type"] = p.EnvoyDNSDiscoveryType
	}
	maps.Copy(config, p.Config)
	return &api.AgentServiceConnectProxyConfig{Config: config}, nil
}
