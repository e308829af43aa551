package consul

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/testnet"
)

const (
	// Datacenter of every cluster.
	Datacenter = "dc1"
	// startTimeout bounds the wait for a cluster's first answers while other tests use the machine.
	startTimeout = 60 * time.Second
	// starts is the number of attempts to start a cluster, because another process may take one of its ports.
	starts = 5
)

// Options describe the servers that a test needs. The zero value means one server without ACLs and TLS.
type Options struct {
	// Servers is the number of voting servers; 0 means one.
	Servers int
	// ACL denies by default; Cluster.Management has all permissions.
	ACL bool
	// TLS closes the plaintext HTTP and gRPC ports and opens those with TLS.
	TLS bool
	// ClientCerts makes HTTPS require a certificate of the cluster's CA.
	ClientCerts bool
	// PlainGRPC keeps the plaintext gRPC port beside the one with TLS.
	PlainGRPC bool
	// HTTPConns limits the connections from one address; 0 means more than a test opens. Consul's default is 200.
	HTTPConns int
	// Config is HCL that is added to each server's configuration.
	Config string
	// Host is where the servers run; nil: in the test's own network, on 127.0.0.1.
	Host *testnet.Host
}

// Cluster is a running cluster of Consul servers.
type Cluster struct {
	// Management is the secret of the token with all permissions; empty without ACLs.
	Management string
	// Servers are the servers, running or not.
	Servers []*Server

	clients   []*Server // agents of other hosts
	t         testing.TB
	dir       string
	opts      Options
	ca        *authority
	transport *http.Transport // of all clients
}

// Start starts a cluster and returns once it has a leader, all its servers vote, its certificate authority exists
// and each server answers. At the test's end the servers are killed, and their logs are shown if the test failed.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	if opts.Servers == 0 {
		opts.Servers = 1
	}
	if opts.HTTPConns == 0 {
		opts.HTTPConns = 10_000
	}
	c := &Cluster{t: t, dir: t.TempDir(), opts: opts}
	if opts.ACL {
		c.Management = newUUID(t)
	}
	if opts.TLS {
		c.ca = newAuthority(t, filepath.Join(c.dir, "tls"))
	}
	c.transport = c.newTransport()
	bin := Binary(t)
	t.Cleanup(c.stop)
	for try := range starts {
		c.Servers = nil
		for i := range opts.Servers {
			c.Servers = append(c.Servers, &Server{
				bin: bin, host: opts.Host, Name: fmt.Sprintf("server-%d", i), Ports: freePorts(t), id: newUUID(t),
				dir: filepath.Join(c.dir, fmt.Sprintf("server-%d-%d", i, try)),
			})
		}
		if c.launch() {
			return c
		}
	}
	t.Fatalf("no Consul cluster after %d starts, the ports were taken each time", starts)
	return nil
}

// launch starts all servers and waits for them. It returns false if a port was taken after it was picked.
func (c *Cluster) launch() bool {
	c.t.Helper()
	for _, s := range c.Servers {
		if err := s.start(c.config(s)); err != nil {
			c.t.Fatal(err)
		}
	}
	err := c.ready(startTimeout)
	if err == nil {
		return true
	}
	for _, s := range c.Servers {
		s.kill()
	}
	for _, s := range c.Servers {
		if s.portTaken() {
			return false
		}
	}
	c.t.Fatalf("start Consul: %v", err)
	return false
}

// Join starts a client agent on a host and waits until it answers and is in the catalog.
func (c *Cluster) Join(host *testnet.Host) *Server {
	c.t.Helper()
	s := &Server{
		bin: Binary(c.t), host: host, client: true, Name: host.Name, Ports: freePorts(c.t), id: newUUID(c.t),
		dir: filepath.Join(c.dir, host.Name),
	}
	c.clients = append(c.clients, s)
	if err := s.start(c.config(s)); err != nil {
		c.t.Fatal(err)
	}
	deadline := time.Now().Add(startTimeout)
	for {
		client, err := c.client(s, c.Management)
		if err == nil {
			var there *api.CatalogNode
			if there, _, err = client.Catalog().Node(s.Name, nil); err == nil && there != nil {
				return s
			}
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("Consul's client %s: %v\n%s", s.Name, err, s.logTail())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *Cluster) stop() {
	c.transport.CloseIdleConnections()
	for _, s := range append(c.clients, c.Servers...) {
		s.kill()
		if c.t.Failed() {
			c.t.Logf("log of Consul's %s:\n%s", s.Name, s.logTail())
		}
	}
}

// Kill ends server i as kill -9 does.
func (c *Cluster) Kill(i int) {
	c.Servers[i].kill()
	c.transport.CloseIdleConnections()
}

// Pause suspends server i until Resume: its connections stay open and nothing answers.
func (c *Cluster) Pause(i int) {
	c.t.Helper()
	c.Servers[i].pause(c.t)
}

// Resume continues a paused server.
func (c *Cluster) Resume(i int) {
	c.t.Helper()
	c.Servers[i].resume(c.t)
}

// Restart kills server i if it runs, starts it again on the same ports and waits until the whole cluster answers
// as after Start, except killed servers. With loseState its data is deleted.
func (c *Cluster) Restart(i int, loseState bool) {
	c.t.Helper()
	c.Kill(i)
	s := c.Servers[i]
	if loseState {
		s.forget(c.t)
	}
	deadline := time.Now().Add(startTimeout)
	for {
		if err := s.start(c.config(s)); err != nil {
			c.t.Fatal(err)
		}
		err := c.ready(time.Until(deadline))
		if err == nil {
			return
		}
		s.kill()
		if !s.portTaken() || time.Now().After(deadline) {
			c.t.Fatalf("restart Consul's %s: %v", s.Name, err)
		}
	}
}

// ReplaceCA gives the servers certificates of another CA, in the files of the one before, and restarts them.
func (c *Cluster) ReplaceCA() {
	c.t.Helper()
	c.ca = newAuthority(c.t, filepath.Dir(c.ca.caFile))
	c.transport.CloseIdleConnections()
	c.transport = c.newTransport()
	for i := range c.Servers {
		c.Restart(i, false)
	}
}

// Client returns a client of the first server; token may be empty.
func (c *Cluster) Client(token string) *api.Client {
	c.t.Helper()
	return c.ClientOf(0, token)
}

// ClientOf returns a client of server i.
func (c *Cluster) ClientOf(i int, token string) *api.Client {
	c.t.Helper()
	client, err := c.client(c.Servers[i], token)
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

func (c *Cluster) client(s *Server, token string) (*api.Client, error) {
	transport := c.transport
	if s.host != nil {
		transport = c.newTransport()
		transport.DisableKeepAlives = true
		transport.DialContext = s.host.Dial
	}
	return api.NewClient(&api.Config{
		Address: c.address(s), Token: token,
		Transport: transport, HttpClient: &http.Client{Transport: transport},
	})
}

func (c *Cluster) newTransport() *http.Transport {
	// A killed server's port may now belong to another program, which never answers.
	transport := &http.Transport{MaxIdleConnsPerHost: 64, ResponseHeaderTimeout: startTimeout}
	if c.ca != nil {
		transport.TLSClientConfig = c.ca.clientTLS(c.t)
	}
	return transport
}

// address returns a server's HTTP address in the form of a Pannier configuration.
func (c *Cluster) address(s *Server) string {
	if c.opts.TLS {
		return fmt.Sprintf("https://127.0.0.1:%d", s.Ports.HTTPS)
	}
	return fmt.Sprintf("127.0.0.1:%d", s.Ports.HTTP)
}

func (c *Cluster) grpcAddress(s *Server) string {
	if c.opts.TLS {
		return fmt.Sprintf("https://127.0.0.1:%d", s.Ports.GRPCTLS)
	}
	return fmt.Sprintf("127.0.0.1:%d", s.Ports.GRPC)
}
