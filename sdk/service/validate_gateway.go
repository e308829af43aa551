package service

import (
	"reflect"
	"strings"
)

func (v *validator) gateway(at field, s *Service, g *Gateway) {
	given := 0
	for _, is := range []bool{g.Ingress != nil, g.Terminating != nil, g.Mesh != nil, g.API != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		v.fail(at, "exactly one of api, ingress, mesh and terminating is required")
	}
	if s.Port == "" && g.Ingress == nil && g.API == nil {
		v.fail(at, "the service needs a port, where the gateway listens")
	}
	if g.Proxy != nil {
		v.gatewayProxy(at.in("proxy"), g.Proxy)
	}
	if g.Ingress != nil {
		v.ingress(at.in("ingress"), g.Ingress)
	}
	if g.Terminating != nil {
		v.terminating(at.in("terminating"), g.Terminating)
	}
}

func (v *validator) gatewayProxy(at field, p *GatewayProxy) {
	if p.ConnectTimeout != "" {
		v.duration(at.in("connect_timeout"), p.ConnectTimeout, minTimeout)
	}
	v.oneOf(at.in("envoy_dns_discovery_type"), p.EnvoyDNSDiscoveryType, "STRICT_DNS", "LOGICAL_DNS")
	for _, name := range sorted(p.EnvoyGatewayBindAddresses) {
		bind, at := p.EnvoyGatewayBindAddresses[name], at.in("envoy_gateway_bind_addresses").in(name)
		if bind.Address == "" {
			v.fail(at.in("address"), "is required")
		}
		v.between(at.in("port"), bind.Port, 1, maxPort)
	}
}

func (v *validator) ingress(at field, g *Ingress) {
	if g.TLS != nil {
		versions := []string{"TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"}
		v.oneOf(at.in("tls").in("tls_min_version"), g.TLS.TLSMinVersion, versions...)
		v.oneOf(at.in("tls").in("tls_max_version"), g.TLS.TLSMaxVersion, versions...)
		v.sds(at.in("tls"), g.TLS.SDS)
	}
	if len(g.Listeners) == 0 {
		v.fail(at.in("listeners"), "at least one listener is required")
	}
	ports := map[int32]bool{}
	for i := range g.Listeners {
		l := &g.Listeners[i]
		at := at.element("listeners", i, quoted("listener", "", i))
		v.between(at.in("port"), l.Port, 1, maxPort)
		if ports[l.Port] {
			v.fail(at.in("port"), "another listener has %d too", l.Port)
		}
		ports[l.Port] = true
		v.oneOf(at.in("protocol"), l.Protocol, "tcp", "http", "http2", "grpc")
		v.behind(at, l)
	}
}

// behind checks the services of a listener by the rules of Consul's ingress gateway config entry. A tcp
// listener cannot distinguish services, so it has only one.
func (v *validator) behind(at field, l *IngressListener) {
	plain := l.Protocol == "" || l.Protocol == "tcp"
	switch {
	case len(l.Services) == 0:
		v.fail(at.in("services"), "at least one service is required")
	case plain && len(l.Services) > 1:
		v.fail(at.in("services"), "a listener of tcp has one service, not %d", len(l.Services))
	}
	names, hosts := map[string]bool{}, map[string]bool{}
	for i := range l.Services {
		s := &l.Services[i]
		at := at.element("services", i, quoted("service", s.Name, i))
		switch {
		case s.Name == "":
			v.fail(at.in("name"), "is required")
		case names[s.Name]:
			v.fail(at.in("name"), "another service of the listener has it too")
		case s.Name == "*" && plain:
			v.fail(at.in("name"), "a listener of tcp needs one service by its name")
		}
		names[s.Name] = true
		switch {
		case len(s.Hosts) > 0 && plain:
			v.fail(at.in("hosts"), "a listener of tcp does not know the host")
		case len(s.Hosts) > 0 && s.Name == "*":
			v.fail(at.in("hosts"), "services that are not named have hosts of their own")
		}
		for _, host := range s.Hosts {
			if hosts[strings.ToLower(host)] {
				v.fail(at.in("hosts"), "%q is there twice in the listener", host)
			}
			hosts[strings.ToLower(host)] = true
		}
		v.ofService(at, s, plain)
	}
}

// ofService checks what a listener does for one service only.
func (v *validator) ofService(at field, s *IngressService, plain bool) {
	if s.TLS != nil {
		if only := (IngressTLS{SDS: s.TLS.SDS}); s.TLS.SDS == nil || !reflect.DeepEqual(*s.TLS, only) {
			v.fail(at.in("tls"), "a service has a certificate of its own, sds, and nothing else: write the rest in ingress { tls }")
		}
		v.sds(at.in("tls"), s.TLS.SDS)
	}
	if plain && s.RequestHeaders != nil {
		v.fail(at.in("request_headers"), "a listener of tcp knows no headers")
	}
	if plain && s.ResponseHeaders != nil {
		v.fail(at.in("response_headers"), "a listener of tcp knows no headers")
	}
	const highest = 1<<31 - 1
	v.between(at.in("max_connections"), s.MaxConnections, 0, highest)
	v.between(at.in("max_pending_requests"), s.MaxPendingRequests, 0, highest)
	v.between(at.in("max_concurrent_requests"), s.MaxConcurrentRequests, 0, highest)
}

func (v *validator) sds(at field, s *SDS) {
	if s != nil && (s.ClusterName == "" || s.CertResource == "") {
		v.fail(at.in("sds"), "cluster_name and cert_resource are required")
	}
}

func (v *validator) terminating(at field, t *Terminating) {
	if len(t.Services) == 0 {
		v.fail(at.in("services"), "at least one service is required")
	}
	names := map[string]bool{}
	for i := range t.Services {
		s := &t.Services[i]
		at := at.element("services", i, quoted("service", s.Name, i))
		switch {
		case s.Name == "":
			v.fail(at.in("name"), "is required")
		case names[s.Name]:
			v.fail(at.in("name"), "another service of the gateway has it too")
		}
		names[s.Name] = true
		if pair := s.CertFile != "" || s.KeyFile != ""; pair && (s.CAFile == "" || s.CertFile == "" || s.KeyFile == "") {
			v.fail(at, "a client certificate needs ca_file, cert_file and key_file")
		}
	}
}
