package generator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	if s.Socket != "" {
		// A socket's address has no scheme that reports whether it uses TLS.
		s.TLS = c.GRPCCAFile != ""
	}
	if s.TLS {
		client, err := g.pool.Client(c, token)
		if err != nil {
			return s, err
		}
		if s.CA, err = consul.ProxyCA(ctx, client, c); err != nil {
			return s, err
		}
	}
	if err := g.reach(ctx, s); err != nil {
		return s, status.Errorf(codes.Unavailable, "no xDS server of Consul %q at %s: %s: set grpc_address in the host's "+
			"consul block", c.Name, address, status.Convert(err).Message())
	}
	return s, nil
}

// reachTimeout bounds the try to reach the xDS server.
const reachTimeout = 5 * time.Second

// reach connects to the server as the proxy will, which would retry for ever, and fails unless it serves gRPC.
func reach(ctx context.Context, s envoy.Server) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	network, address := "tcp", net.JoinHostPort(s.Endpoint.Address, strconv.Itoa(int(s.Endpoint.Port)))
	if s.Socket != "" {
		network, address = "unix", s.Socket
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if s.TLS {
		over := tls.Client(conn, verifyChain(s.CA))
		if err := over.HandshakeContext(ctx); err != nil {
			return err
		}
		conn = over
	}
	emptyMessage := bytes.NewReader(make([]byte, 5)) // not compressed, of no length
	ask, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+quietCall, emptyMessage)
	if err != nil {
		return err
	}
	ask.Header.Set("Content-Type", "application/grpc")
	alone := &http.Transport{ // HTTP/2 on the connection, whatever protects it
		Protocols:   new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	alone.Protocols.SetUnencryptedHTTP2(true)
	defer alone.CloseIdleConnections()
	answer, err := alone.RoundTrip(ask)
	if err != nil {
		return fmt.Errorf("what listens there does not speak gRPC%s: %w", with[s.TLS], err)
	}
	defer answer.Body.Close()
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/grpc") {
		return fmt.Errorf("what listens there does not speak gRPC, but HTTP (%s)", answer.Status)
	}
	return nil
}

// quietCall is one that Consul answers, or refuses, without a line in its log.
const quietCall = "/hashicorp.consul.dataplane.DataplaneService/GetSupportedDataplaneFeatures"

// with reports whether gRPC was tried with TLS.
var with = map[bool]string{true: " with TLS", false: " without TLS"}

// verifyChain verifies a server as Envoy does: by its chain, whatever its name is.
func verifyChain(ca string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca))
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		//nolint:gosec // G402: VerifyConnection does it
		InsecureSkipVerify: true,
		VerifyConnection: func(is tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range is.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := is.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
			return err
		},
	}
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
		DebugConfig struct{ GRPCAddrs, GRPCTLSAddrs []string }
	}
	_, err = client.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	switch {
	case consul.Answered(err, http.StatusForbidden) && !unknownToken(err):
		g.log.Warn(
			"the token may not read the Consul agent (agent:read): using the default port for xDS; set grpc_address or another token",
			"consul", c.Name, "port", fallbackPort)
		return listenAddress(c, nil, fallbackPort), nil
	case err != nil:
		return "", consul.Error(err, c, "ask the agent for its xDS port")
	case self.XDS.Ports.TLS > 0:
		return "https://" + listenAddress(c, self.DebugConfig.GRPCTLSAddrs, self.XDS.Ports.TLS), nil
	case self.XDS.Ports.Plaintext > 0:
		return listenAddress(c, self.DebugConfig.GRPCAddrs, self.XDS.Ports.Plaintext), nil
	}
	return "", status.Errorf(codes.FailedPrecondition,
		"the agent of Consul %q (%s) does not serve xDS: set ports.grpc_tls or ports.grpc in its configuration, "+
			"or grpc_address in the host's", c.Name, c.Address)
}

// listenAddress returns where the agent serves xDS: of its addresses, such as "tcp://10.0.0.7:8502", the one with the
// host of its HTTP API, or else the first; that host, where it listens on all.
func listenAddress(c service.Consul, listens []string, port int) string {
	host := "localhost"
	scheme, rest, found := strings.Cut(c.Address, "://")
	if !found {
		rest = scheme
	}
	if u, err := url.Parse("//" + rest); err == nil {
		host = cmp.Or(u.Hostname(), host)
	}
	best := ""
	for _, text := range listens {
		at, err := netip.ParseAddrPort(strings.TrimPrefix(text, "tcp://"))
		switch {
		case err != nil: // a socket of the file system
		case at.Addr().IsUnspecified(), at.Addr().String() == host:
			return net.JoinHostPort(host, strconv.Itoa(port))
		case best == "":
			best = at.String()
		}
	}
	return cmp.Or(best, net.JoinHostPort(host, strconv.Itoa(port)))
}
