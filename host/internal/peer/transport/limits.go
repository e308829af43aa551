package transport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"github.com/pannier/pannier/host/internal/peer/pki"
)

// Bounds of the numbers of connections.
const (
	// maxStrangers bounds connections that have not identified themselves, per address and in total.
	maxStrangers    = 100
	maxAllStrangers = 1000
	// maxOfPeer bounds the connections of one certificate's holder. An agent needs fewer than ten.
	maxOfPeer = 256
)

// limits count connections.
type limits struct {
	mu        sync.Mutex
	all       int
	strangers map[netip.Addr]int
	peers     map[pki.Identity]int
}

func newLimits() *limits {
	return &limits{strangers: map[netip.Addr]int{}, peers: map[pki.Identity]int{}}
}

// begin counts a connection that has not identified itself, until release is called.
func (l *limits) begin(from net.Addr) (release func(), err error) {
	var addr netip.Addr // zero if it has none
	if tcp, ok := from.(*net.TCPAddr); ok {
		addr = tcp.AddrPort().Addr().Unmap()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.all >= maxAllStrangers:
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

// join counts a connection as its peer's until it is closed.
func (l *limits) join(peer pki.Identity, conn *countedConn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers[peer] >= maxOfPeer {
		return fmt.Errorf("%s has %d connections already", peer, l.peers[peer])
	}
	l.peers[peer]++
	conn.gone = func() { l.leave(peer) }
	return nil
}

func (l *limits) leave(peer pki.Identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	decrease(l.peers, peer)
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

func (c *countedConn) Close() error {
	c.once.Do(func() {
		if c.gone != nil {
			c.gone()
		}
	})
	return c.Conn.Close()
}

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
