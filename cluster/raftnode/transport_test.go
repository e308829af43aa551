package raftnode

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// TestARefusedPipelineEnds keeps sending requests after it has read a refusal and stopped reading, as raft
// may do.
func TestARefusedPipelineEnds(t *testing.T) {
	log := hclog.NewNullLogger()
	transport := func() *raft.NetworkTransport {
		n, err := raft.NewTCPTransportWithLogger("127.0.0.1:0", nil, 1, time.Minute, log)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	other, own := transport(), &confirmingTransport{transport(), &confirmations{}, new(atomic.Bool)}
	over := make(chan struct{})
	defer close(over)
	go func() {
		for n := 0; ; n++ {
			select {
			case rpc := <-other.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: n < 2}, nil)
			case <-over:
				return
			}
		}
	}()
	p, err := own.AppendEntriesPipeline("b", other.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error {
		_, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse))
		return err
	}
	for _, yes := range []bool{true, true, false} {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		if f := <-p.Consumer(); f.Response().Success != yes {
			t.Fatalf("the answer is %t", !yes)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ask() == nil {
		}
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("sending blocks forever")
		_ = p.Close()
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
