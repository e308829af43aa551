package raftnode

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

// A follower of raft's looks whether its leader is silent when a timer has run out that knows nothing
// of the silence: one to two heartbeat timeouts long, so up to three pass before it looks for another. It
// does not vote against a leader that it has not missed yet either, so nobody leads until
// the slowest of the servers that are needed has. Here each looks as soon as it may.

// turn is by how much a server looks later than the one before it. Two that look at the same
// moment split the votes. Heartbeats come at most a fifth of the heartbeat timeout apart, so the
// order of the servers is kept.
const turn = heartbeat * 3 / 10

// missLeader makes raft look for another leader when this one has been silent for the heartbeat
// timeout and for the turns of the servers before this one, until ctx ends.
func (n *Node) watchLeader(ctx context.Context) {
	for {
		_, next := n.preVotes.received()
		wait := heartbeat
		if _, leader := n.LeaderWithID(); leader != "" && n.State() == raft.Follower {
			silent := n.LastContact()
			if wait = time.Until(silent.Add(heartbeat + n.turns(leader, silent))); wait <= 0 {
				if err := n.checkLeader(); err != nil {
					n.logger.Error("raft does not look for another leader yet", "silent", leader, "error", err)
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

// turns are those of the voters that look before this server for a leader in place of that one, silent since
// a moment. Those that have looked and lost are not waited for any longer: they have lost as long as they are
// too few to elect one of them.
func (n *Node) turns(leader raft.ServerID, since time.Time) time.Duration {
	servers, err := n.servers()
	if err != nil {
		return 0 // raft is being closed
	}
	voters, looked, before, lost := 0, 0, 0, 0
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
			looked++
			if first {
				lost++
			}
		}
	}
	if looked <= voters/2 {
		before -= lost
	}
	return time.Duration(before) * turn
}

// look makes raft look now whether it has to find a leader. It does so on a follower whenever its
// heartbeat timeout is shortened, and starts an election if there was no contact within it.
func (n *Node) checkLeader() error {
	conf := n.ReloadableConfig()
	for _, conf.HeartbeatTimeout = range []time.Duration{heartbeat - time.Millisecond, heartbeat} {
		if err := n.ReloadConfig(conf); err != nil {
			return err
		}
	}
	return nil
}
