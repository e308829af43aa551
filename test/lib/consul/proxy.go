package consul

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/service"
)

// Proxy forwards requests to a server's HTTP API and makes chosen ones fail. It has the cluster's certificate.
type Proxy struct {
	cluster *Cluster
	server  *Server
	address string
	origin  *http.Transport

	mu       sync.Mutex
	rules    []*rule
	requests []string // "METHOD /path", including failed ones
	srv      *http.Server
	served   chan struct{} // closed when srv has ended
	changed  chan struct{} // closed by Clear: stalled requests continue
}

// Match selects the requests for a fault. The zero value matches all, forever.
type Match struct {
	Method string
	Path   string // prefix of the path
	Times  int    // number of requests; 0: until Clear
}

type rule struct {
	match Match
	left  int
	fault Fault
}

// Fault is what happens to a request: Status, Refuse, Stall or Cut.
type Fault func(p *Proxy, w http.ResponseWriter, r *http.Request, lifted <-chan struct{})

// Status answers with a code and a text without asking the server.
func Status(code int, text string) Fault {
	return func(_ *Proxy, w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		http.Error(w, text, code)
	}
}

// Refuse closes the connection without asking the server.
func Refuse() Fault {
	return func(*Proxy, http.ResponseWriter, *http.Request, <-chan struct{}) {
		panic(http.ErrAbortHandler)
	}
}

// Cut lets the server handle the request and then closes the connection instead of answering.
func Cut() Fault {
	return func(p *Proxy, _ http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		if res, err := p.forward(r); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		panic(http.ErrAbortHandler)
	}
}

// Stall holds the request until its caller disconnects, or until Clear: then it is forwarded.
func Stall() Fault {
	return func(p *Proxy, w http.ResponseWriter, r *http.Request, lifted <-chan struct{}) {
		select {
		case <-lifted:
			p.pass(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// Proxy starts a proxy before server i. It ends with the test.
func (c *Cluster) Proxy(t testing.TB, i int) *Proxy {
	t.Helper()
	p := &Proxy{cluster: c, server: c.Servers[i], origin: c.newTransport(), changed: make(chan struct{})}
	if err := p.listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Clear()
		p.Down()
		p.origin.CloseIdleConnections()
	})
	return p
}

// Service is s as reached through the proxy.
func (p *Proxy) Service(s service.Consul) service.Consul {
	s.Address = p.address
	if p.cluster.opts.TLS {
		s.Address = "https://" + p.address
	}
	return s
}

// Add makes matching requests fail. If several rules match, the first one applies.
func (p *Proxy) Add(m Match, f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &rule{match: m, left: m.Times, fault: f})
}

// Clear ends all faults, except that it does not undo Down.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
	close(p.changed)
	p.changed = make(chan struct{})
}

// Requests returns all requests so far, as "METHOD /path".
func (p *Proxy) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

// Count returns how many requests of a method had a path with this prefix. An empty method matches any.
func (p *Proxy) Count(method, path string) int {
	n := 0
	for _, r := range p.Requests() {
		if m, of, _ := strings.Cut(r, " "); (method == "" || m == method) && strings.HasPrefix(of, path) {
			n++
		}
	}
	return n
}

// Down closes the port and all connections: new connections are refused.
func (p *Proxy) Down() {
	p.mu.Lock()
	srv, served := p.srv, p.served
	p.srv = nil
	p.mu.Unlock()
	if srv != nil {
		_ = srv.Close()
		<-served
	}
}

// Up opens the port again.
func (p *Proxy) Up(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := p.listen(p.address)
		if err == nil {
			return
		}
		// Another process has the port for a moment.
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *Proxy) listen(address string) error {
	l, err := net.Listen("tcp4", address)
	if err != nil {
		return fmt.Errorf("open the proxy's port: %w", err)
	}
	p.address = l.Addr().String()
	if p.cluster.ca != nil {
		l = tls.NewListener(l, &tls.Config{
			Certificates: p.origin.TLSClientConfig.Certificates, MinVersion: tls.VersionTLS12,
		})
	}
	srv := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.srv, p.served = srv, served
	return nil
}

// ServeHTTP forwards a request or makes it fail.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if fault, lifted := p.take(r); fault != nil {
		fault(p, w, r, lifted)
		return
	}
	p.pass(w, r)
}

// take records the request and finds its fault.
func (p *Proxy) take(r *http.Request) (Fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r.Method+" "+r.URL.Path)
	for _, rule := range p.rules {
		if rule.match.Method != "" && rule.match.Method != r.Method || !strings.HasPrefix(r.URL.Path, rule.match.Path) {
			continue
		}
		if rule.match.Times > 0 {
			if rule.left == 0 {
				continue
			}
			rule.left--
		}
		return rule.fault, p.changed
	}
	return nil, nil
}

// pass returns the server's answer.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request) {
	res, err := p.forward(r)
	if err != nil {
		panic(http.ErrAbortHandler) // as a direct caller of the server would see it
	}
	defer func() { _ = res.Body.Close() }()
	for key, values := range res.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(res.StatusCode)
	if _, err := io.Copy(w, res.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// forward sends the request to the server. The caller closes the answer's body.
func (p *Proxy) forward(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.RequestURI = ""
	out.URL.Scheme, out.URL.Host = "http", fmt.Sprintf("127.0.0.1:%d", p.server.Ports.HTTP)
	if p.cluster.opts.TLS {
		out.URL.Scheme, out.URL.Host = "https", fmt.Sprintf("127.0.0.1:%d", p.server.Ports.HTTPS)
	}
	res, err := p.origin.RoundTrip(out)
	if err != nil {
		return nil, errors.Join(errors.New("the server does not answer"), err)
	}
	return res, nil
}
