package config

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/sdk/service"
)

var (
	connectFields = fields{
		attrs: []string{"native"}, blocks: []string{"sidecar_service", "gateway"},
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
)

func (r *serviceReader) connect(in *section, at string) *service.Connect {
	r.places[at] = in
	c := &service.Connect{}
	in.boolean("native", &c.Native)
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
		p.Expose = r.expose(in.inner(block, fields{attrs: []string{"checks"}, blocks: []string{"path"}}), at+"/expose")
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
	in.small("local_bind_port", &u.LocalBindPort)
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
	in := s.inner(block, fields{attrs: []string{"mode"}})
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
		in := in.inner(block, fields{attrs: []string{"path", "protocol", "local_path_port", "listener_port"}})
		r.places[fmt.Sprintf("%s/paths/%d", at, i)] = in
		in.title("path", &p.Path)
		in.plain().str("protocol", &p.Protocol)
		in.small("local_path_port", &p.LocalPathPort)
		in.numberOrLabel("listener_port", &p.ListenerPort)
		return p
	})
	return e
}
