// Package consul gives plugins access to Consul's HTTP API: a pool of connections for each Consul, the ACL token from
// its file, and errors with a gRPC code that reports whether to retry.
//
// Invariants:
//   - no token is in an error;
//   - one process never has more than maxConns connections to a Consul, because Consul refuses more than 200 from
//     one address (limits.http_max_conns_per_client), and several plugins may run on a host;
//   - after Close no goroutine and no connection is left.
package consul

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/cabundle"
	"github.com/pannier/pannier/sdk/service"
)

// maxConns bounds the connections to one Consul. Three plugins together stay below Consul's limit of 200.
const maxConns = 64

// idleAfter is how long an unused connection is kept.
const idleAfter = 30 * time.Second

// Pool holds the connections to each Consul. It is safe for concurrent use.
type Pool struct {
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu         sync.Mutex
	transports map[service.Consul]*http.Transport
}

// NewPool makes an empty pool. It removes the CONSUL_* variables from the process's environment: consul/api would
// use them, even for a token, where a caller sets nothing, but only the host decides how a plugin reaches Consul.
func NewPool() *Pool {
	for _, name := range environment {
		_ = os.Unsetenv(name) // fails only for a malformed name
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Pool{ctx: ctx, cancel: cancel, transports: map[service.Consul]*http.Transport{}}
}

var environment = []string{
	api.HTTPAddrEnvName, api.HTTPTokenEnvName, api.HTTPTokenFileEnvName, api.HTTPAuthEnvName,
	api.HTTPSSLEnvName, api.HTTPSSLVerifyEnvName, api.HTTPTLSServerName,
	api.HTTPCAFile, api.HTTPCAPath, api.HTTPClientCert, api.HTTPClientKey,
	api.HTTPNamespaceEnvName, api.HTTPPartitionEnvName,
}

// Client returns a client of c that sends token, or no token if it is empty. Making one is cheap: all clients of
// one Consul share their connections. Files of the TLS settings are read for each new connection, so they may be
// replaced. It fails with InvalidArgument for a malformed address and with Unavailable after Close.
func (p *Pool) Client(c service.Consul, token string) (*api.Client, error) {
	scheme, address, found := strings.Cut(c.Address, "://")
	if !found {
		scheme, address = "http", c.Address
	}
	conf := api.Config{
		Scheme: scheme, Token: token, Datacenter: c.Datacenter, Namespace: c.Namespace,
		Partition: c.Partition,
	}
	switch {
	case address == "":
		return nil, status.Errorf(codes.InvalidArgument,
			"Consul %q: the address %q is empty: set address in the agent's consul block", c.Name, c.Address)
	case scheme == "http", scheme == "https":
		conf.Address = scheme + "://" + address // consul/api parses a path in it
	case scheme == "unix":
		conf.Scheme, conf.Address = "http", "localhost"
	default:
		return nil, status.Errorf(codes.InvalidArgument,
			"Consul %q: the address %q is none of host:port, http://, https:// and unix://", c.Name, c.Address)
	}
	transport, err := p.transport(c)
	if err != nil {
		return nil, err
	}
	conf.Transport = transport
	sure := &settled{next: redacting{transport}}
	conf.HttpClient = &http.Client{
		Transport: traced{sure},
		// Consul's API never redirects, and a token must not follow a redirect of another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	client, err := api.NewClient(&conf)
	if err != nil {
		return nil, Error(err, c, "make a client")
	}
	sure.prefix = conf.PathPrefix // from the address
	return client, nil
}

func (p *Pool) transport(c service.Consul) (*http.Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, "the plugin is closing")
	}
	t := p.transports[c]
	if t == nil {
		d := &dialer{pool: p.ctx, consul: c}
		t = &http.Transport{
			DialContext:         d.dial,
			DialTLSContext:      d.dialTLS,
			MaxConnsPerHost:     maxConns,
			MaxIdleConnsPerHost: maxConns,
			IdleConnTimeout:     idleAfter,
		}
		p.transports[c] = t
	}
	return t, nil
}

// Close closes all connections; calls in flight end with an error. It may be repeated.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel()
	for _, t := range p.transports {
		t.CloseIdleConnections()
	}
	clear(p.transports)
	return nil
}

// dialTimeout bounds the setup of one connection, including TLS.
const dialTimeout = 10 * time.Second

// dialer makes the connections to one Consul. They are closed with the pool.
type dialer struct {
	pool   context.Context
	consul service.Consul
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	if path, ok := strings.CutPrefix(d.consul.Address, "unix://"); ok {
		network, address = "unix", path
	}
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	//nolint:contextcheck // a connection lives as long as its pool, not as the call that has made it
	return &pooledConn{Conn: raw, forget: context.AfterFunc(d.pool, func() { _ = raw.Close() })}, nil
}

func (d *dialer) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	conf, err := tlsConfig(d.consul)
	if err != nil {
		return nil, err
	}
	if conf.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		conf.ServerName = host
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	raw, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error is reported
		return nil, err
	}
	return conn, nil
}

// bounded returns a context that ends after dialTimeout, or when the pool is closed. It does not depend on
// the caller that waits for the connection.
func (d *dialer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	stop := context.AfterFunc(d.pool, cancel)
	return ctx, func() { stop(); cancel() }
}

// pooledConn is closed when the pool is closed, even if it is in use.
type pooledConn struct {
	net.Conn
	forget func() bool
}

func (c *pooledConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// tlsConfig reads the files of c's TLS settings. An unusable file is FailedPrecondition, because a retry does not
// help.
func tlsConfig(c service.Consul) (*tls.Config, error) {
	conf := &tls.Config{ServerName: c.TLSServerName, MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := cabundle.Read(c.CAFile)
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "ca_file cannot be read: %v", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, status.Errorf(codes.FailedPrecondition, "ca_file %q has no PEM certificate", c.CAFile)
		}
	}
	if c.CertFile != "" || c.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "cert_file %q and key_file %q are not a key pair: %v",
				c.CertFile, c.KeyFile, err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}

// Token reads an ACL token from its file. It is read at each use, since it may be rotated. An empty path means no
// token. If the file cannot be read or does not have exactly one word, the error is FailedPrecondition; it names
// the file but never its content.
func Token(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "token_file cannot be read: %v", err)
	}
	words := strings.Fields(string(text))
	switch {
	case len(words) == 0:
		return "", status.Errorf(codes.FailedPrecondition,
			"token_file %q is empty: write the secret id of a Consul ACL token into it", path)
	case len(words) > 1:
		return "", status.Errorf(codes.FailedPrecondition,
			"token_file %q holds more than one word: it must contain only the secret id of a Consul ACL token", path)
	}
	return words[0], nil
}
