package transport

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/process"
)

// Bounds of the numbers of connections. All but maxOfPeer are lower where the process may open few files (share).
const (
	// maxStrangers bounds connections that have not identified themselves, per address and in total.
	maxStrangers    = 100
	maxAllStrangers = 1000
	// maxOfPeer bounds the connections of one certificate's holder. An agent needs fewer than ten.
	maxOfPeer = 256
	// maxCallers bounds the connections to the API on the port.
	maxCallers = 4096
	// maxPublic bounds the connections of a listener that asks for no certificate (Limits.Listener), per address, or
	// per user of a unix socket, and in total.
	maxPublic    = 100
	maxAllPublic = 1000
	// maxKnown bounds how many addresses of agents are remembered.
	maxKnown = 16 << 10
)

// share is how many connections of one kind there may be: most, but no more than a part of the files that the process
// may have open. So each kind leaves room for all others, and no kind takes the last quarter: it is for the unix
// socket's root, for raft, and for the agent's own files.
func share(most, parts int) int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur/uint64(parts) < uint64(most) {
		return int(files.Cur) / parts
	}
	return most
}

// Limits bound what all listeners of an agent hold: connections, and bytes of requests.
type Limits struct {
	mu        sync.Mutex
	all       int // strangers
	strangers map[netip.Addr]int
	callers   int // of the API
	agents    int // calls between agents
	peers     map[pki.Identity]int
	known     map[netip.Addr]bool // where agents have identified themselves
	bytes     Bytes
	log       *refusals
}

// NewLimits makes limits for a process. They log what they refuse.
func NewLimits(log hclog.Logger) *Limits {
	return &Limits{
		log: newRefusals(log), strangers: map[netip.Addr]int{}, peers: map[pki.Identity]int{}, known: map[netip.Addr]bool{},
		bytes: Bytes{of: map[string]int64{}},
	}
}

// Bytes bounds what is held of requests.
func (l *Limits) Bytes() *Bytes { return &l.bytes }

// begin counts a connection that has not identified itself, until release is called. One from an address at which an
// agent has identified itself before is not refused because of others.
func (l *Limits) begin(from net.Addr) (release func(), err error) {
	addr := addressOf(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.all >= share(maxAllStrangers, 8) && !l.known[addr]:
		return nil, fmt.Errorf("%d connections have not identified themselves yet", l.all)
	case l.strangers[addr] >= maxStrangers:
		return nil, fmt.Errorf("%d connections of this address have not identified themselves yet", l.strangers[addr])
	}
	l.all++
	l.strangers[addr]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all--
		decrease(l.strangers, addr)
	}, nil
}

// addressOf returns the IP address of a connection; zero if it has none.
func addressOf(from net.Addr) (addr netip.Addr) {
	if tcp, ok := from.(*net.TCPAddr); ok {
		addr = tcp.AddrPort().Addr().Unmap()
	}
	return addr
}

// join counts a connection as its peer's until it is closed. Raft has no bound but its peer's: without it the agent is
// of no use.
func (l *Limits) join(peer pki.Identity, protocol string, conn *countedConn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kind *int
	most := 0
	switch protocol {
	case protocolRaft:
	case protocolGRPC:
		kind, most = &l.agents, share(math.MaxInt, 4)
	default:
		kind, most = &l.callers, share(maxCallers, 8)
	}
	switch {
	case l.peers[peer] >= maxOfPeer:
		return fmt.Errorf("%s has %d connections already", peer, l.peers[peer])
	case kind != nil && *kind >= most:
		return fmt.Errorf("%s asks for one connection too many: there are %d for %s", peer, *kind, protocol)
	}
	l.peers[peer]++
	if kind != nil {
		*kind++
	}
	if addr := addressOf(conn.RemoteAddr()); peer.Role != pki.CLI && len(l.known) < maxKnown {
		l.known[addr] = true
	}
	conn.gone = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		decrease(l.peers, peer)
		if kind != nil {
			*kind--
		}
	}
	return nil
}

// Listener bounds the connections that a listener hands out, in all and from one address, or of one user on a unix
// socket, where root and the agent's own user have no bound. One too many is closed, and logged.
func (l *Limits) Listener(under net.Listener) net.Listener {
	return &bounded{Listener: under, log: l.log, of: map[string]int{}}
}

// Refused logs what was refused, sparingly, with details in pairs.
func (l *Limits) Refused(what string, err error, details ...any) {
	l.log.refused(what, err, details...)
}

// bounded is a listener with bounds.
type bounded struct {
	net.Listener
	log *refusals

	mu  sync.Mutex
	all int
	of  map[string]int // connections by address or user
}

// Accept returns the next connection that is within the bounds.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			b.log.refused("connections cannot be taken", err, "listener", b.Addr(), "retried", true)
			return nil, err // net/http tries again later
		}
		counted, err := b.count(conn)
		if err == nil {
			return counted, nil
		}
		b.log.refused("a connection was refused", err, "listener", b.Addr(), "from", conn.RemoteAddr())
		_ = conn.Close()
	}
}

func (b *bounded) count(conn net.Conn) (net.Conn, error) {
	holder := "address " + addressOf(conn.RemoteAddr()).String()
	local, isLocal := conn.(unixConn)
	if isLocal = isLocal && conn.LocalAddr().Network() == "unix"; isLocal {
		cred, err := process.AtSocket(local)
		if err != nil {
			return nil, err
		}
		if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
			return conn, nil
		}
		holder = fmt.Sprintf("user %d", cred.Uid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch most := share(maxAllPublic, 8); {
	case b.of[holder] >= min(maxPublic, most/2):
		return nil, fmt.Errorf("%s has %d connections already", holder, b.of[holder])
	case b.all >= most:
		return nil, fmt.Errorf("%s asks for one connection too many: there are %d", holder, b.all)
	}
	b.all++
	b.of[holder]++
	counted := &countedConn{Conn: conn, gone: func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.all--
		decrease(b.of, holder)
	}}
	if isLocal {
		return &countedUnixConn{local, counted}, nil
	}
	return counted, nil
}

func decrease[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// countedConn calls gone once, when it is closed. gone is set before the connection is shared.
type countedConn struct {
	net.Conn
	once sync.Once
	gone func()
}

// NetConn returns the connection that is counted.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

func (c *countedConn) Close() error {
	c.once.Do(func() {
		if c.gone != nil {
			c.gone()
		}
	})
	return c.Conn.Close()
}

// countedUnixConn is a countedConn with the system calls of its socket.
type countedUnixConn struct {
	unixConn
	counted *countedConn
}

// unixConn is a connection of a unix socket, with its system calls.
type unixConn interface {
	net.Conn
	syscall.Conn
}

// NetConn returns the connection that is counted.
func (c *countedUnixConn) NetConn() net.Conn { return c.unixConn }

func (c *countedUnixConn) Close() error { return c.counted.Close() }

// refusals logs what was refused: at most ten at once and one per second, and how many were left out, so that nobody
// can fill the disk from outside.
type refusals struct {
	log   hclog.Logger
	allow *rate.Limiter
	mu    sync.Mutex
	quiet int
}

func newRefusals(log hclog.Logger) *refusals {
	return &refusals{log: log, allow: rate.NewLimiter(1, 10)}
}

func (r *refusals) refused(what string, err error, details ...any) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	r.mu.Lock()
	tell, quiet := r.allow.Allow(), r.quiet
	if r.quiet++; tell {
		r.quiet = 0
	}
	r.mu.Unlock()
	if !tell {
		return
	}
	if quiet > 0 {
		details = append(details, "not_told", quiet)
	}
	r.log.Warn(what, append(details, "error", err)...)
}
