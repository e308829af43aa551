package generator

import (
	"cmp"
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/cabundle"
	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/envoy"
	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
)

// fallbackPort is Consul's default port for xDS without TLS.
const fallbackPort = 8502

// server returns the address of Consul's xDS server, and the CA to verify it with.
func (g *Generator) server(ctx context.Context, c service.Consul, token string) (envoy.Server, error) {
	address := c.GRPCAddress
	if address == "" {
		var err error
		if address, err = g.askAddress(ctx, c, token); err != nil {
			return envoy.Server{}, err
		}
	}
	s, err := parseAddress(ctx, address)
	if err != nil {
		return s, status.Errorf(status.Code(err), "grpc_address of Consul %q: %s", c.Name, status.Convert(err).Message())
	}
	caFile := cmp.Or(c.GRPCCAFile, c.CAFile)
	if s.Socket != "" {
		// A socket's address has no scheme that says whether it uses TLS.
		caFile = c.GRPCCAFile
		s.TLS = caFile != ""
	}
	switch {
	case !s.TLS:
	case caFile != "":
		s.CA, err = readCA(caFile)
	default:
		s.CA, err = g.askCA(ctx, c, token)
	}
	return s, err
}

// parseAddress parses host:port with or without http:// or https://, and unix:///path. Envoy needs an IP address,
// so names are resolved.
func parseAddress(ctx context.Context, text string) (envoy.Server, error) {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "http", text
	}
	var s envoy.Server
	switch strings.ToLower(scheme) {
	case "unix":
		s.Socket = rest
		if rest == "" {
			return s, status.Errorf(codes.InvalidArgument, "%q does not name a socket", text)
		}
		return s, nil
	case "https":
		s.TLS = true
	case "http":
	default:
		return s, status.Errorf(codes.InvalidArgument, "%q is none of host:port, http://, https:// and unix://", text)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return s, status.Errorf(codes.InvalidArgument, "%q has no port", text)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return s, status.Errorf(codes.InvalidArgument, "%q has no port from 1 to 65535", text)
	}
	s.Endpoint, err = resolve(ctx, host, int(n))
	return s, err
}

// bindTo resolves an address to listen on; the default is the loopback address.
func bindTo(ctx context.Context, b bootstrap.Bind) (envoy.Endpoint, error) {
	if b.Port == 0 {
		return envoy.Endpoint{Socket: b.Socket()}, nil
	}
	return resolve(ctx, cmp.Or(b.Address, "localhost"), b.Port)
}

func resolve(ctx context.Context, host string, port int) (envoy.Endpoint, error) {
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return envoy.Endpoint{}, status.Errorf(codes.Unavailable, "resolve %q: %v", host, err)
	}
	best := preferred(ips)
	return envoy.Endpoint{Address: best.String(), Port: uint32(port)}, nil
}

// preferred returns the first IPv4 address, or else the first address, as Consul's own command does.
func preferred(ips []net.IPAddr) net.IPAddr {
	for _, ip := range ips {
		if ip.IP.To4() != nil {
			return ip
		}
	}
	return ips[0]
}

// askAddress asks the local agent for its xDS address. If the token may not read the agent, it uses Consul's
// default port, as Consul's own command does.
func (g *Generator) askAddress(ctx context.Context, c service.Consul, token string) (string, error) {
	client, err := g.pool.Client(c, token)
	if err != nil {
		return "", err
	}
	var self struct {
		XDS struct {
			Ports struct{ Plaintext, TLS int }
		} `json:"xDS"`
	}
	_, err = client.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	switch {
	case consul.Answered(err, http.StatusForbidden) && !unknownToken(err):
		g.log.Warn(
			"the token may not read the Consul agent (agent:read): using the default port for xDS; set grpc_address or another token",
			"consul", c.Name, "port", fallbackPort)
		return "localhost:" + strconv.Itoa(fallbackPort), nil
	case err != nil:
		return "", consul.Error(err, c, "ask the agent for its xDS port")
	case self.XDS.Ports.TLS > 0:
		return "https://localhost:" + strconv.Itoa(self.XDS.Ports.TLS), nil
	case self.XDS.Ports.Plaintext > 0:
		return "localhost:" + strconv.Itoa(self.XDS.Ports.Plaintext), nil
	}
	return "", status.Errorf(codes.FailedPrecondition,
		"the agent of Consul %q (%s) does not serve xDS: set ports.grpc_tls or ports.grpc in its configuration, "+
			"or grpc_address in the host's", c.Name, c.Address)
}

func readCA(path string) (string, error) {
	pem, err := cabundle.Read(path)
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "the xDS server's CA file cannot be read: %v", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return "", status.Errorf(codes.FailedPrecondition, "the xDS server's CA file %q has no PEM certificate", path)
	}
	return string(pem), nil
}

// askCA reads the mesh's own CA, which signs the certificates of agents with auto_encrypt or auto_config.
// Without any CA the proxy would send its token to any server that answers.
func (g *Generator) askCA(ctx context.Context, c service.Consul, token string) (string, error) {
	client, err := g.pool.Client(c, token)
	if err != nil {
		return "", err
	}
	roots, _, err := client.Agent().ConnectCARoots((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return "", consul.Error(err, c, "ask the agent for the mesh's CA, since neither grpc_ca_file nor ca_file is set")
	}
	var pems strings.Builder
	for _, root := range roots.Roots {
		pems.WriteString(strings.TrimSpace(root.RootCertPEM) + "\n")
	}
	if pems.Len() == 0 {
		return "", status.Errorf(codes.FailedPrecondition,
			"Consul %q (%s) has no mesh CA, and neither grpc_ca_file nor ca_file is set", c.Name, c.Address)
	}
	return pems.String(), nil
}
