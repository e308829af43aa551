package raftnode_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/raftnode"
)

// misled has gossip in which somebody has forged the address of a server.
type misled struct {
	pipes
	server, at string
}

func (m misled) Members() []discovery.Member {
	all := m.pipes.Members()
	for i := range all {
		if all[i].Name == m.server {
			all[i].RPC = m.at
		}
	}
	return all
}

// pipes are the connections of servers in one process, and the servers' addresses in gossip.
type pipes map[string]*pipe

// pipe is one server's connections to the others (raftnode.Streams).
type pipe struct {
	all      pipes
	name     string
	incoming chan net.Conn
	closed   chan struct{}
	closing  sync.Once
}

func (all pipes) add(name string) {
	all[name] = &pipe{all: all, name: name, incoming: make(chan net.Conn), closed: make(chan struct{})}
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
	if addr != name {
		return nil, fmt.Errorf("%s answers, not %s", addr, name)
	}
	near, far := net.Pipe()
	select {
	case p.all[addr].incoming <- far:
		return near, nil
	case <-p.all[addr].closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.closing.Do(func() { close(p.closed) })
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: p.name} }

func (all pipes) Members() (members []discovery.Member) {
	for name := range all {
		self := discovery.Self{Name: name, Role: discovery.Server, RPC: name}
		members = append(members, discovery.Member{Self: self, Status: discovery.Alive})
	}
	return members
}

func (pipes) Changed() <-chan struct{}      { return nil }
func (pipes) ForceLeave(string, bool) error { return nil }

// TestForgedAddress: a server that is asked for by another's address would count, and vote, for two.
func TestForgedAddress(t *testing.T) {
	all := pipes{}
	for _, name := range []string{"a", "b", "c"} {
		all.add(name)
	}
	node := func(name string, members raftnode.Members, known func(string) string) *raftnode.Node {
		cfg := config(t.TempDir(), name, 3)
		cfg.Streams, cfg.Members, cfg.Known = all[name], members, known
		return open(t, cfg)
	}
	node("b", all, nil)
	node("c", all, nil)
	a := node("a", misled{all, "b", "c"}, nil)
	if s, err := a.Ask(t.Context(), "b"); err == nil {
		t.Errorf("%q answers for b", s.ID)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	all.add("a")
	a = node("a", misled{all, "b", "c"}, func(server string) string { return server })
	if s, err := a.Ask(t.Context(), "b"); err != nil || s.ID != "b" {
		t.Errorf("b is not found where the ledger has it: %q, %v", s.ID, err)
	}
}
