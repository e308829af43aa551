package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pannier/pannier/sdk/service"
)

// consulBlocks reads the consul blocks of one file; relative paths start at dir.
func (l *loader) consulBlocks(s *section, dir string) {
	seen := map[string]bool{}
	for _, block := range s.content.Blocks.OfType("consul") {
		in := s.inner(block, fields{attrs: append(slices.Sorted(maps.Keys((&Consul{}).keys(dir))), "name")})
		name := cmp.Or(in.named(block.Labels[0]), service.DefaultConsul)
		if !l.label(in, block, name, seen) {
			continue
		}
		c := l.consuls[name]
		if c == nil {
			empty := NewConsul(name)
			c, l.consuls[name] = &empty, &empty
		}
		if c.IdentityOnly {
			in.problems.add(in.missing, "%s: there is an identity block of that name too: choose another", in.path)
			continue
		}
		in.read(c.keys(dir))
	}
}

// keys are the keys of a consul block.
func (c *Consul) keys(dir string) keys {
	return keys{
		"address": consulAddress(&c.Address), "grpc_address": consulAddress(&c.GRPCAddress),
		"token_file": file(dir, &c.TokenFile), "ca_file": file(dir, &c.CAFile), "cert_file": file(dir, &c.CertFile),
		"key_file": file(dir, &c.KeyFile), "grpc_ca_file": file(dir, &c.GRPCCAFile), "tls_server_name": &c.TLSServerName,
		"datacenter": &c.Datacenter, "namespace": &c.Namespace, "partition": &c.Partition, "auth_method": &c.AuthMethod,
		"audience": text(&c.Audience), "identity_timeout": &c.IdentityTimeout, "check_addresses": &c.CheckAddresses,
		"identity_plugin": pluginName(&c.IdentityPlugin), "registration_plugin": pluginName(&c.RegistrationPlugin), "bootstrap_plugin": pluginName(&c.BootstrapPlugin),
	}
}

// NewConsul returns what an empty block has.
func NewConsul(name string) Consul {
	return Consul{
		Consul:   service.Consul{Name: name, Address: defaultConsulAddress},
		Audience: defaultAudience, IdentityTimeout: defaultIdentityTimeout,
	}
}

// identityBlocks reads the identity blocks of one file: issuers of identities that are no Consul. A service and an
// identity of a workload name both by name, so a consul block may not have the same.
func (l *loader) identityBlocks(s *section) {
	seen := map[string]bool{}
	for _, block := range s.content.Blocks.OfType("identity") {
		in := s.inner(block, fields{attrs: []string{"plugin", "audience", "timeout"}})
		name := block.Labels[0]
		if !l.label(in, block, name, seen) {
			continue
		}
		c := l.consuls[name]
		if c == nil {
			c = &Consul{
				Consul: service.Consul{Name: name}, Audience: name, IdentityTimeout: defaultIdentityTimeout, IdentityOnly: true,
			}
			l.consuls[name] = c
		}
		if !c.IdentityOnly {
			in.problems.add(block.DefRange, "%s: there is a consul block of that name too: choose another", in.path)
			continue
		}
		in.read(keys{"plugin": pluginName(&c.IdentityPlugin), "audience": text(&c.Audience), "timeout": &c.IdentityTimeout})
	}
}

// text reads a text that is not empty.
func text(dst *string) func(*section, string) {
	return func(s *section, name string) {
		if s.str(name, dst) && *dst == "" {
			s.fail(name, "is empty")
		}
	}
}

// consulAddress reads the address of a Consul API.
func consulAddress(dst *string) func(*section, string) {
	return func(s *section, name string) {
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
