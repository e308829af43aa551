package raftnode

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

// Raft's follower timer runs for one to two heartbeat timeouts and ignores when the leader was last heard from, so
// a dead leader is noticed after one to three timeouts. A follower also refuses its vote while it has not noticed,
// so the slowest server of a majority decides when there is a new leader. Here each server checks as soon as the
// heartbeat timeout has passed since the last contact, staggered by name.

// turn is the delay between two servers' checks: two candidates at the same moment split the votes. Heartbeats are
// at most a fifth of the heartbeat timeout apart, so the servers check in the intended order.
const turn = heartbeat * 3 / 10

// watchLeader makes raft look for another leader when the present one has been silent for the heartbeat timeout
// and this server's turn has come, until ctx ends.
func (n *Node) watchLeader(ctx context.Context) {
	for {
		_, next := n.preVotes.received()
		wait := heartbeat
		if _, leader := n.LeaderWithID(); leader != "" && n.State() == raft.Follower {
			silent := n.LastContact()
			if wait = time.Until(silent.Add(heartbeat + n.turns(leader, silent))); wait <= 0 {
				if err := n.checkLeader(); err != nil {
					n.logger.Error("raft could not be told to look for another leader", "silent", leader, "error", err)
				}
				wait = turn
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		case <-time.After(wait):
		}
	}
}

// watchAlone makes a server without others lead again a heartbeat timeout after it has stopped, as when its log could
// not be written, until ctx ends. Raft alone takes up to twice as long.
func (n *Node) watchAlone(ctx context.Context) {
	states := make(chan raft.Observation, 1)
	changes := raft.NewObserver(states, false, func(o *raft.Observation) bool {
		_, changed := o.Data.(raft.RaftState)
		return changed
	})
	n.RegisterObserver(changes)
	defer n.DeregisterObserver(changes)
	for {
		var late <-chan time.Time
		if n.State() == raft.Follower {
			late = time.After(aloneHeartbeat)
		}
		select {
		case <-ctx.Done():
			return
		case <-states:
		case <-late:
			if err := n.checkLeader(); err != nil {
				n.logger.Error("raft could not be told to lead again", "error", err)
			}
		}
	}
}

// turns returns how long this server waits for the voters that check before it, when the leader has been silent
// since a given time. It does not wait for voters that have already asked for votes and lost: as long as fewer
// than a majority have noticed, none of them can win.
func (n *Node) turns(leader raft.ServerID, since time.Time) time.Duration {
	servers, err := n.servers()
	if err != nil {
		return 0 // raft is being closed
	}
	voters, noticed, before, lost := 0, 0, 0, 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		first := s.ID != leader && string(s.ID) < n.cfg.ID
		if first {
			before++
		}
		if n.preVotes.askedSince(s.ID, since) {
			noticed++
			if first {
				lost++
			}
		}
	}
	if noticed <= voters/2 {
		before -= lost
	}
	return time.Duration(before) * turn
}

// checkLeader makes raft check now whether it must find a leader. A follower checks whenever its heartbeat timeout
// is shortened, and starts an election if there was no contact within it.
func (n *Node) checkLeader() error {
	conf := n.ReloadableConfig()
	usual := conf.HeartbeatTimeout
	for _, conf.HeartbeatTimeout = range []time.Duration{usual - time.Millisecond, usual} {
		if err := n.ReloadConfig(conf); err != nil {
			return err
		}
	}
	return nil
}
