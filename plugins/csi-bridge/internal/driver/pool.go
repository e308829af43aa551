package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/kmutex"
)

// idleAfter is how long an unused connection is kept. It is longer than any fingerprint's interval, and short
// enough that drivers which come and go leave nothing behind.
const idleAfter = 10 * time.Minute

// Pool holds one connection for each driver endpoint.
type Pool struct {
	log    hclog.Logger
	timing Timing

	mu     sync.Mutex
	conns  map[string]*pooled // by socket path
	old    map[*pooled]bool   // whose endpoint leads to another socket since: closed with their last user
	closed bool
}

type pooled struct {
	conn  *Conn
	users int       // callers, and calls in flight that their callers have given up
	since time.Time // of the last release
}

// NewPool makes an empty pool. Connections log to log at debug and trace.
func NewPool(log hclog.Logger, timing Timing) *Pool {
	return &Pool{log: log, timing: timing, conns: map[string]*pooled{}, old: map[*pooled]bool{}}
}

// Acquire returns the connection of an endpoint, which is dialled when it is first used. The caller calls release
// once. An endpoint that is a link may be led to another process of the driver: then new callers get a connection to
// that, and the one before is closed after its last call. It fails with InvalidArgument for a malformed endpoint and
// with Unavailable after Close.
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
	locks := &kmutex.Locks[string]{}
	if e != nil && e.conn.replaced() {
		locks = e.conn.locks // a volume's next call waits for its last one
		delete(p.conns, path)
		p.old[e] = true
		p.closeUnused(e)
		e = nil
	}
	if e == nil {
		conn, err := open(path, locks, p.log, p.timing)
		if err != nil {
			return nil, nil, err
		}
		e = &pooled{conn: conn}
		conn.hold = func() (release func()) {
			p.mu.Lock()
			defer p.mu.Unlock()
			e.users++
			return func() { p.release(e) }
		}
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
	p.closeUnused(e)
}

// closeUnused closes a connection that nobody uses and that is not worth keeping: one whose endpoint leads elsewhere,
// or one on which only questions were asked, as to a process that is tried. p.mu is held.
func (p *Pool) closeUnused(e *pooled) {
	if e.users > 0 || !p.old[e] && (!e.conn.asked.Load() || e.conn.called.Load()) {
		return
	}
	delete(p.old, e)
	if p.conns[e.conn.path] == e {
		delete(p.conns, e.conn.path)
	}
	_ = e.conn.cc.Close() // fails only if it is closed already
}

// dropIdle closes connections that have been unused for long. It runs when a connection is acquired, so it needs
// no goroutine: without traffic nothing accumulates, and gRPC's own idle timeout has closed the socket already.
func (p *Pool) dropIdle(now time.Time) {
	for path, e := range p.conns {
		if e.users == 0 && now.Sub(e.since) > idleAfter {
			delete(p.conns, path)
			_ = e.conn.cc.Close() // fails only if it is closed already
		}
	}
}

// Close closes all connections; calls in flight end with an error. It may be repeated.
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
	for e := range p.old {
		errs = append(errs, e.conn.cc.Close())
	}
	clear(p.conns)
	clear(p.old)
	return errors.Join(errs...)
}

// maxSocketPath is the space in sockaddr_un.sun_path without the terminating zero (unix(7)).
const maxSocketPath = 107

// socketPath returns the socket's path from an endpoint: unix:///path, unix:/path or an absolute path. Anything
// else is InvalidArgument.
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
			"endpoint %q: the path has %d bytes, a unix socket's can have %d: use a shorter one", endpoint, len(
				path), maxSocketPath)
	}
	return filepath.Clean(path), nil
}

// maxMessage bounds a request and an answer, in bytes. gRPC's default of 4 MiB is too small for a ListVolumes
// without pages on a large backend.
const maxMessage = 16 << 20

// reconnect controls how soon a lost driver is dialled again: it restarts within about a second, and the socket is
// on this machine.
var reconnect = grpc.ConnectParams{
	Backoff: backoff.Config{
		BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 2 * time.Second,
	},
	MinConnectTimeout: 5 * time.Second,
}

// Conn is the connection to one driver. Its clients may be used inside Do only.
type Conn struct {
	Identity   csi.IdentityClient
	Controller csi.ControllerClient
	Group      csi.GroupControllerClient
	Node       csi.NodeClient

	path       string
	log        hclog.Logger
	timing     Timing
	cc         *grpc.ClientConn
	locks      *kmutex.Locks[string] // by Op.Key, of the endpoint
	hold       func() (release func())
	leads      atomic.Pointer[string] // to what the endpoint led when it was dialled last
	asked      atomic.Bool            // questions were asked on it
	called     atomic.Bool            // other calls were made on it
	lastDial   atomic.Pointer[error]  // error of the last failed dial
	made       atomic.Uint64          // how many connections were made
	epoch      atomic.Uint64          // of the newest one: odd while it lasts, one more when it has ended
	controller cache[*Controller]
	node       cache[*Node]
	deaths     deaths
}

func open(path string, locks *kmutex.Locks[string], log hclog.Logger, timing Timing) (*Conn, error) {
	c := &Conn{path: path, locks: locks, log: log, timing: timing, deaths: deaths{alone: make(chan struct{}, 1)}}
	// Use passthrough and our own dialler instead of gRPC's unix resolver: the dial's error stays complete for the
	// operator, and the authority is the plain "localhost" that every gRPC server accepts.
	cc, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithContextDialer(c.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(reconnect),
		grpc.WithIdleTimeout(idleAfter),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage),
			grpc.ForceCodecV2(newCodec())),
		grpc.WithUnaryInterceptor(c.intercept),
		grpc.WithStatsHandler(epochs{c}),
		grpc.WithDisableRetry(), // only Do retries
	)
	if err != nil {
		return nil, fmt.Errorf("set up the connection to %s: %w", path, err)
	}
	c.cc = cc
	c.Identity = csi.NewIdentityClient(cc)
	c.Controller = csi.NewControllerClient(cc)
	c.Group = csi.NewGroupControllerClient(cc)
	c.Node = csi.NewNodeClient(cc)
	return c, nil
}

func (c *Conn) dial(ctx context.Context, _ string) (net.Conn, error) {
	leads := leadsTo(c.path)
	c.leads.Store(&leads) // before the dial: if it changes meanwhile, the connection counts as replaced
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.path)
	if err != nil {
		c.lastDial.Store(&err)
		return nil, err
	}
	return conn, nil
}

// leadsTo returns where the link at a path leads; empty: there is none.
func leadsTo(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return target
}

// replaced reports whether the endpoint leads to another socket than the one that was dialled.
func (c *Conn) replaced() bool {
	dialled := c.leads.Load()
	return dialled != nil && *dialled != leadsTo(c.path)
}

// State returns the connection's current state, for WaitForChange.
func (c *Conn) State() connectivity.State { return c.cc.GetState() }

// WaitForChange returns true when the connection's state is no longer from, and false if ctx ends first.
func (c *Conn) WaitForChange(ctx context.Context, from connectivity.State) bool {
	return c.cc.WaitForStateChange(ctx, from)
}

// nextEpoch is the epoch of the connection on which the next call is made: this one, or the one that the call makes. An
// answer is kept for this epoch, so not at all if the driver is replaced while it answers.
func (c *Conn) nextEpoch() uint64 { return c.epoch.Load() | 1 }

// epochs counts a Conn's connections, so that the capabilities of one driver process are not used for the next.
type epochs struct{ conn *Conn }

// connection is the key of a connection's number.
type connection struct{}

func (e epochs) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connection{}, e.conn.made.Add(1))
}

func (e epochs) HandleConn(ctx context.Context, s stats.ConnStats) {
	n, _ := ctx.Value(connection{}).(uint64)
	switch s.(type) {
	case *stats.ConnBegin:
		e.conn.epoch.Store(2*n - 1)
		e.conn.deaths.connected()
	case *stats.ConnEnd: // one that only finishes its last calls may end after the next one has begun
		e.conn.epoch.CompareAndSwap(2*n-1, 2*n)
	}
}
func (e epochs) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (e epochs) HandleRPC(context.Context, stats.RPCStats)                       {}
