package config

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/sdk/service"
)

var (
	connectFields = fields{
		attrs: []string{"native", "admin"}, blocks: []string{"sidecar_service", "gateway"},
		refused: map[string]string{
			"sidecar_task": "a proxy is a program of your choice; write a sidecar block in the workload instead",
		},
	}
	sidecarServiceFields = fields{
		attrs: []string{"port", "tags", "disable_default_tcp_check"}, maps: []string{"meta"}, blocks: []string{"proxy"},
	}
	proxyFields = fields{
		attrs: []string{"local_service_address", "local_service_port"}, maps: []string{"config"},
		blocks: []string{"upstreams", "expose", "mesh_gateway"},
		refused: map[string]string{
			"transparent_proxy": "the node's network is not redirected for a workload; write upstreams blocks",
		},
	}
	upstreamFields = fields{
		attrs: []string{
			"destination_name", "destination_type", "destination_namespace", "destination_partition", "destination_peer", "datacenter",
			"local_bind_address", "local_bind_port", "local_bind_socket_path", "local_bind_socket_mode",
		},
		maps: []string{"config"}, blocks: []string{"mesh_gateway"},
	}
	meshGatewayFields = fields{attrs: []string{"mode"}}
	exposeFields      = fields{attrs: []string{"checks"}, blocks: []string{"path"}}
	exposePathFields  = fields{attrs: []string{"path", "protocol", "local_path_port", "listener_port"}}
)

func (r *serviceReader) connect(in *section, at string) *service.Connect {
	r.places[at] = in
	c := &service.Connect{}
	in.boolean("native", &c.Native)
	in.plain().str("admin", &c.Admin)
	if block := in.one("sidecar_service"); block != nil {
		c.SidecarService = r.sidecarService(in.inner(block, sidecarServiceFields), at+"/sidecar_service")
	}
	if block := in.one("gateway"); block != nil {
		c.Gateway = r.gateway(in.inner(block, gatewayFields), at+"/gateway")
	}
	return c
}

func (r *serviceReader) sidecarService(in *section, at string) *service.SidecarService {
	r.places[at] = in
	s := &service.SidecarService{}
	in.numberOrLabel("port", &s.Port)
	in.strings("tags", &s.Tags)
	in.boolean("disable_default_tcp_check", &s.DisableDefaultTCPCheck)
	s.Meta = in.texts("meta")
	if block := in.one("proxy"); block != nil {
		s.Proxy = r.proxy(in.inner(block, proxyFields), at+"/proxy")
	}
	return s
}

func (r *serviceReader) proxy(in *section, at string) *service.Proxy {
	r.places[at] = in
	p := &service.Proxy{}
	in.str("local_service_address", &p.LocalServiceAddress)
	in.small("local_service_port", &p.LocalServicePort)
	p.Upstreams = list(in.content.Blocks.OfType("upstreams"), func(i int, block *hcl.Block) service.Upstream {
		return r.upstream(in.inner(block, upstreamFields), fmt.Sprintf("%s/upstreams/%d", at, i))
	})
	if block := in.one("expose"); block != nil {
		p.Expose = r.expose(in.inner(block, exposeFields), at+"/expose")
	}
	p.Config = in.object("config")
	p.MeshGateway = r.meshGateway(in, at)
	return p
}

func (r *serviceReader) upstream(in *section, at string) (u service.Upstream) {
	r.places[at] = in
	in.title("destination_name", &u.DestinationName)
	in.plain().str("destination_type", &u.DestinationType)
	in.str("destination_namespace", &u.DestinationNamespace)
	in.str("destination_partition", &u.DestinationPartition)
	in.str("destination_peer", &u.DestinationPeer)
	in.str("datacenter", &u.Datacenter)
	in.str("local_bind_address", &u.LocalBindAddress)
	in.smallOrLabel("local_bind_port", &u.LocalBindPort, &u.LocalBindPortLabel)
	in.str("local_bind_socket_path", &u.LocalBindSocketPath)
	in.plain().str("local_bind_socket_mode", &u.LocalBindSocketMode)
	u.Config = in.object("config")
	u.MeshGateway = r.meshGateway(in, at)
	return u
}

func (r *serviceReader) meshGateway(s *section, at string) *service.MeshGateway {
	block := s.one("mesh_gateway")
	if block == nil {
		return nil
	}
	in := s.inner(block, meshGatewayFields)
	r.places[at+"/mesh_gateway"] = in
	m := &service.MeshGateway{}
	in.plain().str("mode", &m.Mode)
	return m
}

func (r *serviceReader) expose(in *section, at string) *service.Expose {
	r.places[at] = in
	e := &service.Expose{}
	in.boolean("checks", &e.Checks)
	e.Paths = list(in.content.Blocks.OfType("path"), func(i int, block *hcl.Block) (p service.ExposePath) {
		in := in.inner(block, exposePathFields)
		r.places[fmt.Sprintf("%s/paths/%d", at, i)] = in
		in.title("path", &p.Path)
		in.plain().str("protocol", &p.Protocol)
		in.small("local_path_port", &p.LocalPathPort)
		in.numberOrLabel("listener_port", &p.ListenerPort)
		return p
	})
	return e
}

var (
	gatewayFields      = fields{blocks: []string{"proxy", "ingress", "terminating", "mesh", "api"}}
	gatewayProxyFields = fields{
		attrs: []string{
			"connect_timeout", "envoy_gateway_bind_tagged_addresses", "envoy_gateway_no_default_bind", "envoy_dns_discovery_type",
		},
		labelled: []string{"envoy_gateway_bind_addresses"}, maps: []string{"config"},
	}
	bindFields       = fields{attrs: []string{"address", "port"}}
	ingressFields    = fields{blocks: []string{"tls", "listener"}}
	ingressTLSFields = fields{attrs: []string{"enabled", "tls_min_version", "tls_max_version", "cipher_suites"}, blocks: []string{"sds"}}
	sdsFields        = fields{attrs: []string{"cluster_name", "cert_resource"}}
	listenerFields   = fields{attrs: []string{"port", "protocol"}, blocks: []string{"service"}}
	behindFields     = fields{
		attrs:  []string{"name", "hosts", "max_connections", "max_pending_requests", "max_concurrent_requests"},
		blocks: []string{"tls", "request_headers", "response_headers"},
	}
	modifierFields    = fields{attrs: []string{"remove"}, maps: []string{"add", "set"}}
	terminatingFields = fields{blocks: []string{"service"}}
	linkedFields      = fields{attrs: []string{"name", "ca_file", "cert_file", "key_file", "sni"}}
)

func (r *serviceReader) gateway(in *section, at string) *service.Gateway {
	r.places[at] = in
	g := &service.Gateway{}
	if block := in.one("proxy"); block != nil {
		g.Proxy = r.gatewayProxy(in.inner(block, gatewayProxyFields), at+"/proxy")
	}
	if block := in.one("ingress"); block != nil {
		g.Ingress = r.ingress(in.inner(block, ingressFields), at+"/ingress")
	}
	if block := in.one("terminating"); block != nil {
		in := in.inner(block, terminatingFields)
		at := at + "/terminating"
		r.places[at] = in
		g.Terminating = &service.Terminating{Services: list(in.content.Blocks.OfType("service"), func(i int, block *hcl.Block) service.LinkedService {
			return r.linked(in.inner(block, linkedFields), fmt.Sprintf("%s/services/%d", at, i))
		})}
	}
	if block := in.one("mesh"); block != nil {
		in.inner(block, fields{})
		g.Mesh = &service.Mesh{}
	}
	if block := in.one("api"); block != nil {
		in.inner(block, fields{})
		g.API = &service.APIGateway{}
	}
	return g
}

func (r *serviceReader) gatewayProxy(in *section, at string) *service.GatewayProxy {
	r.places[at] = in
	p := &service.GatewayProxy{}
	in.plain().str("connect_timeout", &p.ConnectTimeout)
	in.boolean("envoy_gateway_bind_tagged_addresses", &p.EnvoyGatewayBindTaggedAddresses)
	in.boolean("envoy_gateway_no_default_bind", &p.EnvoyGatewayNoDefaultBind)
	in.plain().str("envoy_dns_discovery_type", &p.EnvoyDNSDiscoveryType)
	p.Config = in.object("config")
	for _, block := range in.content.Blocks.OfType("envoy_gateway_bind_addresses") {
		label := block.Labels[0]
		in := in.inner(block, bindFields)
		r.places[at+"/envoy_gateway_bind_addresses/"+label] = in
		if _, taken := p.EnvoyGatewayBindAddresses[label]; taken {
			in.problems.add(block.DefRange, "%s: block given twice", in.path)
		}
		if p.EnvoyGatewayBindAddresses == nil {
			p.EnvoyGatewayBindAddresses = map[string]service.BindAddress{}
		}
		var bind service.BindAddress
		in.str("address", &bind.Address)
		in.small("port", &bind.Port)
		p.EnvoyGatewayBindAddresses[label] = bind
	}
	return p
}

func (r *serviceReader) ingress(in *section, at string) *service.Ingress {
	r.places[at] = in
	g := &service.Ingress{}
	g.TLS = r.tls(in, at)
	g.Listeners = list(in.content.Blocks.OfType("listener"), func(i int, block *hcl.Block) service.IngressListener {
		return r.listener(in.inner(block, listenerFields), fmt.Sprintf("%s/listeners/%d", at, i))
	})
	return g
}

func (r *serviceReader) listener(in *section, at string) (l service.IngressListener) {
	r.places[at] = in
	in.small("port", &l.Port)
	in.plain().str("protocol", &l.Protocol)
	l.Services = list(in.content.Blocks.OfType("service"), func(i int, block *hcl.Block) service.IngressService {
		return r.behind(in.inner(block, behindFields), fmt.Sprintf("%s/services/%d", at, i))
	})
	return l
}

func (r *serviceReader) behind(in *section, at string) (s service.IngressService) {
	r.places[at] = in
	in.title("name", &s.Name)
	in.strings("hosts", &s.Hosts)
	s.TLS = r.tls(in, at)
	s.RequestHeaders = in.modifiers("request_headers")
	s.ResponseHeaders = in.modifiers("response_headers")
	in.small("max_connections", &s.MaxConnections)
	in.small("max_pending_requests", &s.MaxPendingRequests)
	in.small("max_concurrent_requests", &s.MaxConcurrentRequests)
	return s
}

// tls reads the block of an ingress gateway, or of one of its services.
func (r *serviceReader) tls(of *section, at string) *service.IngressTLS {
	block := of.one("tls")
	if block == nil {
		return nil
	}
	in := of.inner(block, ingressTLSFields)
	r.places[at+"/tls"] = in
	out := &service.IngressTLS{}
	in.boolean("enabled", &out.Enabled)
	in.plain().str("tls_min_version", &out.TLSMinVersion)
	in.plain().str("tls_max_version", &out.TLSMaxVersion)
	in.strings("cipher_suites", &out.CipherSuites)
	if block := in.one("sds"); block != nil {
		in := in.inner(block, sdsFields)
		out.SDS = &service.SDS{}
		in.str("cluster_name", &out.SDS.ClusterName)
		in.str("cert_resource", &out.SDS.CertResource)
	}
	return out
}

func (s *section) modifiers(name string) *service.HeaderModifiers {
	block := s.one(name)
	if block == nil {
		return nil
	}
	in := s.inner(block, modifierFields)
	m := &service.HeaderModifiers{Add: in.texts("add"), Set: in.texts("set")}
	in.strings("remove", &m.Remove)
	return m
}

func (r *serviceReader) linked(in *section, at string) (s service.LinkedService) {
	r.places[at] = in
	in.title("name", &s.Name)
	in.str("ca_file", &s.CAFile)
	in.str("cert_file", &s.CertFile)
	in.str("key_file", &s.KeyFile)
	in.str("sni", &s.SNI)
	return s
}
