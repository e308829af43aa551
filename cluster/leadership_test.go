package cluster

import (
	"context"
	"testing"
)

// TestLeadershipComesAndGoes gains, loses and regains leadership, as one of several servers does.
func TestLeadershipComesAndGoes(t *testing.T) {
	n := &Node{}
	n.running, n.stop = context.WithCancel(t.Context())
	n.leadership.init()
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended, returned := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		defer close(returned)
		n.WhileLeader(ctx, func(ctx context.Context) {
			begun <- true
			<-ctx.Done()
			ended <- true
		})
	}()
	for range 3 {
		if n.Leader() {
			t.Fatal("leads before it was elected")
		}
		n.leadership.set(7)
		n.leadership.set(7) // raft may report the same term twice
		<-begun
		if !n.Leader() {
			t.Fatal("does not lead")
		}
		n.leadership.set(0)
		<-ended
	}
	if err := n.WaitReady(t.Context()); err != nil {
		t.Errorf("its ledger had caught up: %v", err)
	}
	cancel()
	<-returned
	n.stop()
}
