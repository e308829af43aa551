package raftnode_test

import (
	"net"
	"sync/atomic"
	"testing"

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

// TestForgedAddress: a server that is asked for by another's address would count, and vote, for two.
func TestForgedAddress(t *testing.T) {
	all := pipes{}
	for _, name := range []string{"a", "b", "c"} {
		all[name] = &pipe{
			all: all, name: name, late: &atomic.Int64{}, incoming: make(chan net.Conn), closed: make(chan struct{}),
		}
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
	all["a"] = &pipe{
		all: all, name: "a", late: &atomic.Int64{}, incoming: make(chan net.Conn), closed: make(chan struct{}),
	}
	a = node("a", misled{all, "b", "c"}, func(server string) string { return server })
	if s, err := a.Ask(t.Context(), "b"); err != nil || s.ID != "b" {
		t.Errorf("b is not found where the ledger has it: %q, %v", s.ID, err)
	}
}
