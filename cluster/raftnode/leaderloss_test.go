package raftnode_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/raftnode"
)

// TestDeadLeaderIsNoticedAtOnce stops leaders: their processes end, or only nobody answers at their ports, as at that
// of a proxy. It uses a clock that advances only while all servers wait, so the machine's load
// does not matter. Raft alone needs 2 s on average and up to 3 s, or more if servers lack an entry and lose elections.
func TestDeadLeaderIsNoticedAtOnce(t *testing.T) {
	const lease, heartbeat = 500 * time.Millisecond, time.Second
	for i, of := range []struct {
		servers, lacking int
		portStays        bool
	}{
		{3, 0, true},
		{3, 0, true},
		{3, 1, true},
		{3, 1, true},
		{5, 0, true},
		{5, 1, true},
		{5, 2, true},
		{3, 0, false},
		{3, 0, false},
		{3, 1, false},
		{5, 0, false},
		{5, 2, false},
	} {
		name := fmt.Sprintf("%d: %d servers, %d lack an entry, port stays: %t", i+1, of.servers, of.lacking, of.portStays)
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServers(t, of.servers)
				first := s.leader(t)
				time.Sleep(time.Minute) // its heartbeats reach the others
				lacking := 0
				for _, name := range slices.Backward(slices.Sorted(maps.Keys(s.nodes))) {
					// The servers that check first lack the entry, and lose their elections.
					if name != first && lacking < of.lacking {
						s.full[name].Store(true)
						lacking++
					}
				}
				s.pipes[first].stays.Store(of.portStays)
				s.end(t, first)
				for _, full := range s.full {
					full.Store(false)
				}
				ended := time.Now()
				s.leader(t)
				atLeast, atMost := lease-heartbeat/5, lease+heartbeat/10
				if of.portStays {
					atLeast, atMost = heartbeat-heartbeat/5, heartbeat+heartbeat/10
				}
				if took := time.Since(ended); took < atLeast || took > atMost {
					t.Errorf("a leader %s after the end of %s, want one after %s to %s", took, first, atLeast, atMost)
				}
			})
		})
	}
}

// TestALeaderWhoseConnectionsEndStays ends all connections of a leader that runs on.
func TestALeaderWhoseConnectionsEndStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServers(t, 3)
		first := s.leader(t)
		time.Sleep(time.Minute)
		term := s.nodes[first].CurrentTerm()
		for range 20 {
			s.pipes[first].cut()
			time.Sleep(time.Second)
		}
		if now, leader := s.nodes[first].CurrentTerm(), s.leader(t); leader != first || now != term {
			t.Errorf("%s leads in term %d, want %s in term %d", leader, now, first, term)
		}
	})
}

// TestWaitingForALeader waits on a follower that still takes the leader that has ended for one that leads.
func TestWaitingForALeader(t *testing.T) {
	for _, portStays := range []bool{true, false} {
		t.Run(fmt.Sprint("port stays: ", portStays), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServers(t, 3)
				first := s.leader(t)
				time.Sleep(time.Minute)
				var follower *raftnode.Node
				for name, n := range s.nodes {
					if name != first {
						follower = n
					}
				}
				wait := func() (took time.Duration) {
					began := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					follower.AwaitLeader(ctx)
					return time.Since(began)
				}
				if took := wait(); took > 0 {
					t.Errorf("waited %s for a leader that leads", took)
				}
				s.pipes[first].stays.Store(portStays)
				s.end(t, first)
				time.Sleep(400 * time.Millisecond)
				if took := wait(); took == 0 || took > time.Second {
					t.Errorf("waited %s after the end of the leader, want until there is another one", took)
				}
				_, name := follower.LeaderWithID()
				if n := s.nodes[string(name)]; n == nil || n.State() != raft.Leader {
					t.Errorf("it waited for %q, which does not lead", name)
				}
			})
		})
	}
}

// TestOneOfTwoWins lets two servers become candidates before either of them hears of the other.
func TestOneOfTwoWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServers(t, 3)
		first := s.leader(t)
		time.Sleep(time.Minute)
		s.end(t, first)
		ended := time.Now()
		s.late.Store(int64(400 * time.Millisecond))
		s.leader(t)
		// The time for the heartbeat timeout and two requests to the other server. A split vote would take
		// another election timeout.
		if took, atMost := time.Since(ended), 2700*time.Millisecond; took > atMost {
			t.Errorf("no leader for %s after the end of %s, want at most %s", took, first, atMost)
		}
	})
}

// servers are servers in one process, connected by pipes.
type servers struct {
	nodes map[string]*raftnode.Node
	full  map[string]*atomic.Bool // set: the server's log accepts no entry
	late  *atomic.Int64           // the delay of each write, in nanoseconds
	pipes pipes
}

func startServers(t *testing.T, n int) servers {
	t.Helper()
	all := pipes{}
	s := servers{map[string]*raftnode.Node{}, map[string]*atomic.Bool{}, &atomic.Int64{}, all}
	for i := range n {
		name := fmt.Sprint("server-", i+1)
		all[name] = &pipe{all: all, name: name, late: s.late, incoming: make(chan net.Conn), closed: make(chan struct{})}
		s.full[name] = &atomic.Bool{}
	}
	for name, p := range all {
		cfg := config(t.TempDir(), name, n)
		cfg.Streams, cfg.Members = p, all
		cfg.Report = func() raftnode.Report { return raftnode.Report{} }
		cfg.Room = func() error {
			if s.full[name].Load() {
				return errors.New("the disk is full")
			}
			return nil
		}
		s.nodes[name] = open(t, cfg)
	}
	return s
}

// end stops a leader right after the others have heard from it.
func (s servers) end(t *testing.T, leader string) {
	t.Helper()
	err := s.nodes[leader].Apply([]byte("the last entry"), 0).Error()
	if err = errors.Join(err, s.nodes[leader].Close()); err != nil {
		t.Fatal(err)
	}
	delete(s.nodes, leader)
}

// leader waits until one of the servers leads.
func (s servers) leader(t *testing.T) string {
	t.Helper()
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(time.Millisecond) {
		for name, n := range s.nodes {
			if n.State() == raft.Leader {
				return name
			}
		}
	}
	t.Fatal("nobody leads")
	return ""
}

// pipes are the connections of servers in one process, and the servers' addresses in gossip.
type pipes map[string]*pipe

// pipe is one server's connections to the others (raftnode.Streams).
type pipe struct {
	all      pipes
	name     string
	late     *atomic.Int64
	incoming chan net.Conn
	closed   chan struct{}
	closing  sync.Once
	stays    atomic.Bool // the port accepts connections when the server is closed, and nobody answers

	mu    sync.Mutex
	conns []net.Conn // from and to this server
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case conn := <-p.incoming:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Dial(name, addr string, _ time.Duration) (net.Conn, error) {
	to := p.all[addr]
	if addr != name {
		return nil, fmt.Errorf("%s answers, not %s", addr, name)
	}
	near, far := net.Pipe()
	select {
	case to.incoming <- lateConn{far, p.late}:
		p.keep(near)
		to.keep(far)
		return lateConn{near, p.late}, nil
	case <-to.closed:
		if to.stays.Load() {
			return nil, io.ErrUnexpectedEOF // of the handshake
		}
		return nil, syscall.ECONNREFUSED
	}
}

func (p *pipe) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

// cut ends all connections of the server.
func (p *pipe) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// lateConn delays writes.
type lateConn struct {
	net.Conn
	by *atomic.Int64
}

func (c lateConn) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(c.by.Load()))
	return c.Conn.Write(p)
}

func (p *pipe) Close() error {
	p.closing.Do(func() { close(p.closed) })
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: p.name} }

func (all pipes) Members() (members []discovery.Member) {
	for name := range all {
		self := discovery.Self{Name: name, Role: discovery.Server, RPC: name, Expect: len(all)}
		members = append(members, discovery.Member{Self: self, Status: discovery.Alive})
	}
	return members
}

func (pipes) Changed() <-chan struct{}      { return nil }
func (pipes) SetFormed()                    {}
func (pipes) ForceLeave(string, bool) error { return nil }
