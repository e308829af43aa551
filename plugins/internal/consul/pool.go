package consul

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/service"
)

// maxConns bounds the connections to one Consul. Three plugins with their full
// number stay below Consul's limit of 200.
const maxConns = 64

// idleAfter is how long a connection that no one uses is kept.
const idleAfter = 30 * time.Second

// Pool holds the connections to each Consul. It is safe for concurrent use.
type Pool struct {
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu         sync.Mutex
	transports map[service.Consul]*http.Transport
}

// NewPool makes an empty pool. It removes the CONSUL_* variables from the process's
// environment: consul/api fills with them what a caller leaves empty, a token too,
// and how a plugin reaches Consul is for the host alone to say.
func NewPool() *Pool {
	for _, name := range environment {
		_ = os.Unsetenv(name) // fails for a malformed name only
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

// Client makes a client of c that sends token; with "" it sends none. Making one is
// cheap: all clients of one Consul share their connections. Files of the TLS
// settings are read for each new connection, so they may be replaced. It fails with
// InvalidArgument on a malformed address and with Unavailable after Close.
func (p *Pool) Client(c service.Consul, token string) (*api.Client, error) {
	scheme, address, found := strings.Cut(c.Address, "://")
	if !found {
		scheme, address = "http", c.Address
	}
	conf := api.Config{Scheme: scheme, Token: token, Datacenter: c.Datacenter, Namespace: c.Namespace, Partition: c.Partition}
	switch {
	case address == "":
		return nil, status.Errorf(codes.InvalidArgument, "Consul %q: the address %q is empty: set address in the agent's consul block", c.Name, c.Address)
	case scheme == "http", scheme == "https":
		conf.Address = scheme + "://" + address // consul/api finds a path in it
	case scheme == "unix":
		conf.Scheme, conf.Address = "http", "localhost"
	default:
		return nil, status.Errorf(codes.InvalidArgument, "Consul %q: the address %q is none of host:port, http://, https:// and unix://", c.Name, c.Address)
	}
	transport, err := p.transport(c)
	if err != nil {
		return nil, err
	}
	conf.Transport = transport
	conf.HttpClient = &http.Client{
		Transport: redacting{transport},
		// Consul's API redirects nowhere, and a token must not follow one who does.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	client, err := api.NewClient(&conf)
	if err != nil {
		return nil, Error(err, c, "make a client")
	}
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

// Close closes all connections; calls in flight end with an error. It may be called
// again.
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
