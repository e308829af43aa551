package services

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// defaultLocalAddress is where a sidecar finds its service.
const defaultLocalAddress = "127.0.0.1"

// buildSidecar makes the sidecar of the instance's registration. What Consul would fill
// in is filled in, so that it can be compared with what Consul has; its id and an empty
// port remain for Consul, and the default checks with it: they need that port.
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

// aliasCheckName is Consul's own name of that check.
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
	}
	return api.ServiceKindMeshGateway
}

// gatewayProxy says to a gateway's proxy, in the keys of Consul's Envoy documentation,
// what Nomad says to it. A key in Config goes first.
func gatewayProxy(p *service.GatewayProxy) (*api.AgentServiceConnectProxyConfig, error) {
	config := map[string]any{}
	if p == nil {
		return &api.AgentServiceConnectProxyConfig{Config: config}, nil
	}
	if p.ConnectTimeout != "" {
		timeout, err := time.ParseDuration(p.ConnectTimeout)
		if err != nil {
			return nil, fmt.Errorf("gateway proxy: connect_timeout %q is no duration", p.ConnectTimeout)
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
