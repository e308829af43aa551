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

// watchLeader makes raft look for another leader when the present one has been silent for the heartbeat timeout, or
// is gone (goneLeader), and this server's turn has come, until ctx ends.
func (n *Node) watchLeader(ctx context.Context) {
	states, end := n.states()
	defer end()
	for {
		_, next := n.preVotes.received()
		found := n.gone.found.Wait()
		wait, patience := heartbeat, heartbeat
		if _, leader := n.LeaderWithID(); leader != "" && n.State() == raft.Follower {
			silent := n.LastContact()
			patience = n.gone.patience(leader, silent)
			wait = time.Until(silent.Add(patience + n.turns(leader, silent)))
		}
		// Raft checks the leader when its heartbeat timeout is shortened. It is long again once raft has.
		err := n.setHeartbeat(heartbeat)
		if err == nil && wait <= 0 {
			if wait = turn; patience < heartbeat {
				err = n.setHeartbeat(patience)
			} else {
				err = n.checkLeader()
			}
		}
		if err != nil {
			n.logger.Error("raft could not be told to look for another leader", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		case <-found:
		case <-states:
		case <-time.After(wait):
		}
	}
}

// states returns a channel that is filled when raft has become a follower, a candidate or the leader, until end.
func (n *Node) states() (changed <-chan raft.Observation, end func()) {
	states := make(chan raft.Observation, 1)
	changes := raft.NewObserver(states, false, func(o *raft.Observation) bool {
		_, changed := o.Data.(raft.RaftState)
		return changed
	})
	n.RegisterObserver(changes)
	return states, func() { n.DeregisterObserver(changes) }
}

// leadAgainAfter is how long a server without others waits until it leads again, as when its log could not be written.
const leadAgainAfter = 2 * time.Second

// watchAlone makes a server without others lead again after it has stopped, until ctx ends. Raft alone takes up to
// twice aloneTimeout.
func (n *Node) watchAlone(ctx context.Context) {
	states, end := n.states()
	defer end()
	for {
		var late <-chan time.Time
		if n.State() == raft.Follower {
			late = time.After(leadAgainAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-states:
		case <-late:
			if err := n.leadAgain(); err != nil {
				n.logger.Error("raft could not be told to lead again", "error", err)
			}
		}
	}
}

// leadAgain makes a server without others stand for election now, as the target of a leadership transfer does.
func (n *Node) leadAgain() error {
	id, self := raft.ServerID(n.cfg.ID), n.transport.LocalAddr()
	now := raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: n.transport.EncodePeer(id, self),
	}}
	return n.transport.TimeoutNow(id, self, &now, &raft.TimeoutNowResponse{})
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
	usual := n.ReloadableConfig().HeartbeatTimeout
	if err := n.setHeartbeat(usual - time.Millisecond); err != nil {
		return err
	}
	return n.setHeartbeat(usual)
}

// setHeartbeat changes raft's heartbeat timeout.
func (n *Node) setHeartbeat(timeout time.Duration) error {
	n.reloading.Lock()
	defer n.reloading.Unlock()
	conf := n.ReloadableConfig()
	if conf.HeartbeatTimeout == timeout {
		return nil
	}
	conf.HeartbeatTimeout = timeout
	return n.ReloadConfig(conf)
}
