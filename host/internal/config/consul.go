package config

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/service"
)

var consulFields = fields{attrs: []string{
	"name", "address", "token_file", "ca_file", "cert_file", "key_file", "tls_server_name", "grpc_address", "grpc_ca_file",
	"datacenter", "namespace", "partition", "auth_method", "audience", "identity_timeout",
	"identity_plugin", "registration_plugin", "bootstrap_plugin",
}}

// consulBlock is a Consul that is being read.
type consulBlock struct {
	Consul
	// at is the place of its last block, for problems found at the end.
	at hcl.Range
}

// consulBlocks reads the consul blocks of one file; relative paths start at dir.
func (l *loader) consulBlocks(s *section, dir string) {
	seen := map[string]bool{}
	for _, block := range s.content.Blocks.OfType("consul") {
		in := s.inner(block, consulFields)
		name := in.named(block.Labels[0])
		if name == "" {
			name = service.DefaultConsul
		}
		if err := claim.CheckID(name); err != nil {
			in.problems.add(block.DefRange, "%s: name %v", in.path, err)
			continue
		}
		if seen[name] {
			in.problems.add(block.DefRange, "%s: a block for %q is given twice in this file", in.path, name)
			continue
		}
		seen[name] = true
		l.agent.Places[fmt.Sprintf("consul %q", name)] = place(block.DefRange)
		l.consul(in, dir, name)
	}
}

// NewConsul returns what an empty block has.
func NewConsul(name string) Consul {
	return Consul{
		Consul:   service.Consul{Name: name, Address: defaultConsulAddress},
		Audience: defaultAudience, IdentityTimeout: defaultIdentityTimeout,
	}
}

func (l *loader) consul(in *section, dir, name string) {
	c := l.consuls[name]
	if c != nil && c.IdentityOnly {
		in.problems.add(in.missing, "%s: there is an identity block of that name too: choose another", in.path)
		return
	}
	if c == nil {
		c = &consulBlock{Consul: NewConsul(name)}
		if l.consuls == nil {
			l.consuls = map[string]*consulBlock{}
		}
		l.consuls[name] = c
	}
	in.consulAddress("address", &c.Address)
	in.consulAddress("grpc_address", &c.GRPCAddress)
	in.file("token_file", dir, &c.TokenFile)
	in.file("ca_file", dir, &c.CAFile)
	in.file("cert_file", dir, &c.CertFile)
	in.file("key_file", dir, &c.KeyFile)
	in.file("grpc_ca_file", dir, &c.GRPCCAFile)
	in.str("tls_server_name", &c.TLSServerName)
	in.str("datacenter", &c.Datacenter)
	in.str("namespace", &c.Namespace)
	in.str("partition", &c.Partition)
	in.str("auth_method", &c.AuthMethod)
	if in.str("audience", &c.Audience) && c.Audience == "" {
		in.fail("audience", "is empty")
	}
	in.duration("identity_timeout", &c.IdentityTimeout)
	in.pluginName("identity_plugin", &c.IdentityPlugin)
	in.pluginName("registration_plugin", &c.RegistrationPlugin)
	in.pluginName("bootstrap_plugin", &c.BootstrapPlugin)
	c.at = in.at("cert_file")
}

// identityBlocks reads the identity blocks of one file: issuers of identities that are no Consul. A service and an
// identity of a workload name both by name, so a consul block may not have the same.
func (l *loader) identityBlocks(s *section) {
	seen := map[string]bool{}
	for _, block := range s.content.Blocks.OfType("identity") {
		in := s.inner(block, fields{attrs: []string{"plugin", "audience", "timeout"}})
		if !l.label(in, block, seen) {
			continue
		}
		name := block.Labels[0]
		c := l.consuls[name]
		if c != nil && !c.IdentityOnly {
			in.problems.add(block.DefRange, "%s: there is a consul block of that name too: choose another", in.path)
			continue
		}
		if c == nil {
			c = &consulBlock{Consul: Consul{
				Consul: service.Consul{Name: name}, Audience: name, IdentityTimeout: defaultIdentityTimeout, IdentityOnly: true,
			}}
			if l.consuls == nil {
				l.consuls = map[string]*consulBlock{}
			}
			l.consuls[name] = c
		}
		in.pluginName("plugin", &c.IdentityPlugin)
		if in.str("audience", &c.Audience) && c.Audience == "" {
			in.fail("audience", "is empty")
		}
		in.duration("timeout", &c.IdentityTimeout)
	}
}

// consulAddress reads the address of a Consul API.
func (s *section) consulAddress(name string, dst *string) {
	var address string
	if !s.str(name, &address) {
		return
	}
	if err := checkConsulAddress(address); err != nil {
		s.fail(name, "%v", err)
		return
	}
	*dst = address
}

// checkConsulAddress accepts a host with a port, with or without http:// or https://, and unix:// with an absolute
// path.
func checkConsulAddress(address string) error {
	bad := fmt.Errorf(`%q is not "HOST:PORT", "https://HOST:PORT" or "unix:///PATH"`, address)
	if socket, isUnix := strings.CutPrefix(address, "unix://"); isUnix {
		if !strings.HasPrefix(socket, "/") {
			return bad
		}
		return nil
	}
	host := address
	if strings.Contains(address, "://") {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || strings.TrimSuffix(u.Path, "/") != "" ||
			u.User != nil || u.RawQuery != "" {
			return bad
		}
		host = u.Host
	}
	name, port, err := net.SplitHostPort(host)
	if n, errPort := strconv.Atoi(port); err != nil || errPort != nil || name == "" || n < 1 || n > 65535 {
		return bad
	}
	return nil
}
