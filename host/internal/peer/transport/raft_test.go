package transport_test

import (
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
)

// named dials one server, by its name.
type named struct {
	*transport.RaftLayer
	to string
}

func (n named) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return n.RaftLayer.Dial(n.to, string(addr), timeout)
}

// Raft's own transport works over the port.
func TestRaftTransport(t *testing.T) {
	ca := pkitest.New(t)
	open := func(name string) *raft.NetworkTransport {
		certs := ca.Certs(t, pki.Server, name)
		port, err := transport.Open(t.Context(),
			transport.Config{Addr: "127.0.0.1:0", Certs: certs, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = port.Close() })
		layer := transport.NewRaftLayer(port, dialer(t, certs))
		transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: named{layer, "b"}, MaxPool: 2, Timeout: timeout, Logger: hclog.NewNullLogger(),
		})
		t.Cleanup(func() {
			transport.CloseStreams()
			_ = transport.Close()
		})
		return transport
	}
	a, b := open("a"), open("b")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			call := <-b.Consumer()
			call.Respond(&raft.AppendEntriesResponse{Term: call.Command.(*raft.AppendEntriesRequest).Term, Success: true}, nil)
		}
	}()
	for term := range uint64(2) {
		var answer raft.AppendEntriesResponse
		err := a.AppendEntries("b", b.LocalAddr(), &raft.AppendEntriesRequest{Term: term}, &answer)
		if err != nil || !answer.Success || answer.Term != term {
			t.Fatalf("got %+v, %v", answer, err)
		}
	}
	<-done
	var answer raft.AppendEntriesResponse
	if err := b.AppendEntries("b", a.LocalAddr(), &raft.AppendEntriesRequest{}, &answer); err == nil {
		t.Error("a server takes another one for the one that it wants")
	}
}
