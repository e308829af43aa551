package consul

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/pannier/pannier/sdk/service"
)

// Service describes how to reach the first server. name is that of the agent's consul block; tokenFile may be
// empty.
func (c *Cluster) Service(name, tokenFile string) service.Consul {
	return c.ServiceOf(c.Servers[0], name, tokenFile)
}

// ServiceOf is Service for any agent.
func (c *Cluster) ServiceOf(s *Server, name, tokenFile string) service.Consul {
	out := service.Consul{
		Name: name, Address: c.address(s), TokenFile: tokenFile,
		GRPCAddress: c.grpcAddress(s), Datacenter: Datacenter,
	}
	if c.ca != nil {
		out.CAFile = c.ca.caFile
		if c.opts.ClientCerts {
			out.CertFile, out.KeyFile = c.ca.certFile, c.ca.keyFile
		}
	}
	return out
}

// Config returns the consul block of an agent's configuration that corresponds to s.
func Config(s service.Consul) string {
	var b strings.Builder
	b.WriteString("consul ")
	if s.Name != "" && s.Name != service.DefaultConsul {
		fmt.Fprintf(&b, "%q ", s.Name)
	}
	b.WriteString("{\n")
	for _, kv := range [][2]string{
		{"address", s.Address},
		{"token_file", s.TokenFile},
		{"ca_file", s.CAFile},
		{"cert_file", s.CertFile},
		{"key_file", s.KeyFile},
		{"tls_server_name", s.TLSServerName},
		{"grpc_address", s.GRPCAddress},
		{"grpc_ca_file", s.GRPCCAFile},
		{"datacenter", s.Datacenter},
		{"namespace", s.Namespace},
		{"partition", s.Partition},
		{"auth_method", s.AuthMethod},
	} {
		if kv[1] != "" {
			fmt.Fprintf(&b, "  %s = %q\n", kv[0], kv[1])
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// CAFile returns the path of the cluster's CA certificate in PEM; empty without TLS.
func (c *Cluster) CAFile() string {
	if c.ca == nil {
		return ""
	}
	return c.ca.caFile
}

// Command prepares Consul's own command line, such as "connect", "envoy", "-bootstrap", with the first server in
// its environment. token may be empty.
func (c *Cluster) Command(token string, args ...string) *exec.Cmd {
	c.t.Helper()
	cmd := exec.Command(Binary(c.t), args...)
	cmd.Env = append(cleanEnv(), "CONSUL_HTTP_ADDR="+c.address(c.Servers[0]))
	if token != "" {
		cmd.Env = append(cmd.Env, "CONSUL_HTTP_TOKEN="+token)
	}
	if c.ca != nil {
		cmd.Env = append(cmd.Env, "CONSUL_CACERT="+c.ca.caFile)
		if c.opts.ClientCerts {
			cmd.Env = append(cmd.Env, "CONSUL_CLIENT_CERT="+c.ca.certFile, "CONSUL_CLIENT_KEY="+c.ca.keyFile)
		}
	}
	return cmd
}
