package raftnode

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

// AwaitLeader waits while no server leads as far as this one knows, or the leader is silent, until ctx ends.
func (n *Node) AwaitLeader(ctx context.Context) {
	_, before := n.LeaderWithID()
	for {
		elected := n.elected.Wait()
		if _, leader := n.LeaderWithID(); leader != "" && (leader != before || n.hears(leader)) {
			return
		}
		select {
		case <-elected:
		case <-time.After(heartbeat / 10): // the leader may be heard again
		case <-ctx.Done():
			return
		}
	}
}

// hears reports whether the leader is this server, or sends it heartbeats, which are at most a fifth of the heartbeat
// timeout apart, and its process has not ended.
func (n *Node) hears(leader raft.ServerID) bool {
	if string(leader) == n.cfg.ID {
		return true
	}
	heard := n.LastContact()
	return time.Since(heard) < turn && n.gone.patience(leader, heard) == heartbeat
}

// observeLeader tells who waits for a leader that raft has another one, or none (raft.FilterFn).
func (n *Node) observeLeader(o *raft.Observation) bool {
	if _, is := o.Data.(raft.LeaderObservation); is {
		n.elected.Notify()
	}
	return false
}
