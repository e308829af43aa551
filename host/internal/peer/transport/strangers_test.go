package transport

import (
	"net"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/system/pki"
)

// Whoever opens connections and says nothing must not keep out an agent that comes from where it has been before.
func TestAgentsAreLetInBesideStrangers(t *testing.T) {
	l := NewLimits(hclog.NewNullLogger())
	from := func(a, b byte) net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, a, b)} }
	agent := from(2, 1)
	l.known[addressOf(agent)] = true
	var all []func()
	for n := range share(maxAllStrangers, 8) {
		release, err := l.begin(from(3, byte(n%200)))
		if err != nil {
			t.Fatalf("stranger %d: %v", n, err)
		}
		all = append(all, release)
	}
	if _, err := l.begin(from(2, 2)); err == nil {
		t.Error("one stranger more is let in")
	}
	release, err := l.begin(agent)
	if err != nil {
		t.Fatalf("an agent is refused: %v", err)
	}
	release()
	for _, release := range all {
		release()
	}
	if l.all != 0 || len(l.strangers) != 0 {
		t.Errorf("%d connections are counted, of %v", l.all, l.strangers)
	}
}

// A connection counts as its peer's until it is closed.
func TestClosedConnectionsDoNotCount(t *testing.T) {
	l, peer := NewLimits(hclog.NewNullLogger()), pki.Identity{Name: "n1", Role: pki.Node}
	var last *countedConn
	for range maxOfPeer {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		last = &countedConn{Conn: near}
		if err := l.join(peer, protocolRaft, last); err != nil {
			t.Fatal(err)
		}
	}
	near, far := net.Pipe()
	defer far.Close()
	next := &countedConn{Conn: near}
	defer next.Close()
	if err := l.join(peer, protocolRaft, next); err == nil {
		t.Error("there is one too many")
	}
	for range 2 { // it may be closed twice
		_ = last.Close()
	}
	if err := l.join(peer, protocolRaft, next); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}
