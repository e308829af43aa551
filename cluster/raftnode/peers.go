package raftnode

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/discovery"
)

// Peer is one server of raft's configuration.
type Peer struct {
	ID      string
	Address string // of its RPC port; empty: gossip has not seen it
	Gossip  discovery.Status
	Version string
	Voter   bool
	Leader  bool
	// Healthy: it answers, hears from the leader and lags by little. Answered says whether
	// it answered at all; without, what follows is empty.
	Healthy, Answered bool
	LastContact       time.Duration // since it heard from the leader; negative: never
	LastIndex         uint64
	LastTerm          uint64
}

// Peers are the servers of raft's configuration as this server knows it, by name; all
// of them are asked.
func (n *Node) Peers(ctx context.Context) ([]Peer, error) {
	servers, err := n.servers()
	if err != nil {
		return nil, err
	}
	var members []discovery.Member
	if n.cfg.Members != nil {
		members = n.cfg.Members.Members()
	}
	_, leader := n.LeaderWithID()
	self := n.Status()
	peers := make([]Peer, len(servers))
	var asked sync.WaitGroup
	for i, s := range servers {
		asked.Go(func() {
			p := Peer{ID: string(s.ID), Voter: s.Suffrage == raft.Voter, Leader: s.ID == leader}
			if m := slices.IndexFunc(members, func(m discovery.Member) bool { return m.Name == p.ID }); m >= 0 {
				p.Address, p.Gossip, p.Version = members[m].RPC, members[m].Status, members[m].Version
			}
			status, err := self, error(nil)
			if p.ID != n.cfg.ID {
				status, err = n.Ask(ctx, p.ID)
			}
			if err == nil {
				p.Answered, p.LastContact, p.LastIndex, p.LastTerm = true, status.LastContact, status.LastIndex, status.LastTerm
				p.Healthy = n.healthy(status, self)
			}
			peers[i] = p
		})
	}
	asked.Wait()
	slices.SortFunc(peers, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
	return peers, nil
}

// healthy is autopilot's rule, with this server's log for a measure.
func (n *Node) healthy(s, measure Status) bool {
	conf := n.cfg.Autopilot()
	return s.LastContact >= 0 && s.LastContact <= conf.LastContactThreshold && s.LastTerm >= measure.LastTerm &&
		s.LastIndex+conf.MaxTrailingLogs >= measure.LastIndex
}
