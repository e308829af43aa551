package config

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/sdk/service"
)

var (
	gatewayFields      = fields{blocks: []string{"proxy", "ingress", "terminating", "mesh"}}
	gatewayProxyFields = fields{
		attrs: []string{
			"connect_timeout", "envoy_gateway_bind_tagged_addresses", "envoy_gateway_no_default_bind", "envoy_dns_discovery_type",
		},
		labelled: []string{"envoy_gateway_bind_addresses"}, maps: []string{"config"},
	}
	linkedFields = fields{attrs: []string{"name", "ca_file", "cert_file", "key_file", "sni"}}
)

func (r *serviceReader) gateway(in *section, at string) *service.Gateway {
	r.places[at] = in
	g := &service.Gateway{}
	if block := in.one("proxy"); block != nil {
		g.Proxy = r.gatewayProxy(in.inner(block, gatewayProxyFields), at+"/proxy")
	}
	if block := in.one("ingress"); block != nil {
		g.Ingress = r.ingress(in.inner(block, fields{blocks: []string{"tls", "listener"}}), at+"/ingress")
	}
	if block := in.one("terminating"); block != nil {
		in := in.inner(block, fields{blocks: []string{"service"}})
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
		in := in.inner(block, fields{attrs: []string{"address", "port"}})
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
	if block := in.one("tls"); block != nil {
		in := in.inner(block, fields{attrs: []string{"enabled", "tls_min_version", "tls_max_version", "cipher_suites"}})
		r.places[at+"/tls"] = in
		g.TLS = &service.IngressTLS{}
		in.boolean("enabled", &g.TLS.Enabled)
		in.plain().str("tls_min_version", &g.TLS.TLSMinVersion)
		in.plain().str("tls_max_version", &g.TLS.TLSMaxVersion)
		in.strings("cipher_suites", &g.TLS.CipherSuites)
	}
	g.Listeners = list(in.content.Blocks.OfType("listener"), func(i int, block *hcl.Block) service.IngressListener {
		in := in.inner(block, fields{attrs: []string{"port", "protocol"}, blocks: []string{"service"}})
		return r.listener(in, fmt.Sprintf("%s/listeners/%d", at, i))
	})
	return g
}

func (r *serviceReader) listener(in *section, at string) (l service.IngressListener) {
	r.places[at] = in
	in.small("port", &l.Port)
	in.plain().str("protocol", &l.Protocol)
	l.Services = list(in.content.Blocks.OfType("service"), func(i int, block *hcl.Block) (s service.IngressService) {
		in := in.inner(block, fields{attrs: []string{"name", "hosts"}})
		r.places[fmt.Sprintf("%s/services/%d", at, i)] = in
		in.title("name", &s.Name)
		in.strings("hosts", &s.Hosts)
		return s
	})
	return l
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
