package driver

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// idleAfter is how long a connection that no one uses is kept. It is longer
// than any fingerprint's interval, and short enough that drivers which come and
// go leave nothing behind.
const idleAfter = 10 * time.Minute

// Pool holds one connection for each driver endpoint.
type Pool struct {
	log    hclog.Logger
	timing Timing

	mu     sync.Mutex
	conns  map[string]*pooled // by socket path
	closed bool
}

type pooled struct {
	conn  *Conn
	users int
	since time.Time // of the last release
}

// NewPool makes an empty pool. Connections log to log at debug and trace.
func NewPool(log hclog.Logger, timing Timing) *Pool {
	return &Pool{log: log, timing: timing, conns: map[string]*pooled{}}
}

// Acquire returns the connection of an endpoint, which is dialled when it is
// first used. The caller calls release once. It fails with InvalidArgument on a
// malformed endpoint and with Unavailable after Close.
func (p *Pool) Acquire(endpoint string) (conn *Conn, release func(), err error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, status.Error(codes.Unavailable, "the bridge is closing")
	}
	p.dropIdle(time.Now())
	e := p.conns[path]
	if e == nil {
		conn, err := open(path, p.log, p.timing)
		if err != nil {
			return nil, nil, err
		}
		e = &pooled{conn: conn}
		p.conns[path] = e
	}
	e.users++
	return e.conn, func() { p.release(e) }, nil
}

func (p *Pool) release(e *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.users--
	e.since = time.Now()
}

// dropIdle closes what no one has used for long. It runs when a connection is
// asked for, so it needs no goroutine: without traffic nothing piles up, and
// gRPC's own idle timeout has let go of the socket already.
func (p *Pool) dropIdle(now time.Time) {
	for path, e := range p.conns {
		if e.users == 0 && now.Sub(e.since) > idleAfter {
			delete(p.conns, path)
			_ = e.conn.cc.Close() // fails only when it is closed already
		}
	}
}

// Close closes all connections; calls in flight end with an error. It may be
// called again.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for _, e := range p.conns {
		errs = append(errs, e.conn.cc.Close())
	}
	clear(p.conns)
	return errors.Join(errs...)
}

// maxSocketPath is what fits into sockaddr_un.sun_path with its final zero (unix(7)).
const maxSocketPath = 107

// socketPath gives the socket's path out of an endpoint: unix:///path,
// unix:/path or a bare absolute path. Any other is InvalidArgument.
func socketPath(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		path = strings.TrimPrefix(endpoint, "unix:")
	}
	switch {
	case !filepath.IsAbs(path):
		return "", status.Errorf(codes.InvalidArgument,
			"endpoint %q: want the absolute path of a unix socket, such as unix:///run/csi/csi.sock", endpoint)
	case len(path) > maxSocketPath:
		return "", status.Errorf(codes.InvalidArgument,
			"endpoint %q: the path has %d bytes, a unix socket's can have %d: use a shorter one", endpoint, len(path), maxSocketPath)
	}
	return filepath.Clean(path), nil
}
