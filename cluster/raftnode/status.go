package raftnode

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/discovery"
)

// ask is a request of one server to another.
type ask struct {
	Promise *promise `json:"promise,omitempty"` // to form a cluster
	Join    string   `json:"join,omitempty"`    // the identity of the cluster that the server is to join
}

// reply answers an ask.
type reply struct {
	Status  Status `json:"status"`
	Promise bool   `json:"promise,omitempty"` // the promise was given
	// Joins is the cluster that the server joins; empty: it has raft state.
	Joins string `json:"joins,omitempty"`
}

// Status describes the raft state of a server.
type Status struct {
	ID string `json:"id"`
	// Formed: the server has raft state.
	Formed bool `json:"formed"`
	// Expects is its bootstrap_expect.
	Expects int `json:"expects,omitempty"`
	// Servers are the names in its latest configuration.
	Servers []string `json:"servers,omitempty"`
	// PromisedTo is the server that may form a cluster with this one; empty: none.
	PromisedTo string `json:"promised_to,omitempty"`
	Leads      bool   `json:"leads,omitempty"`
	// Leaving: the server leaves the cluster. Gossip, which announces it too, can be forged.
	Leaving   bool   `json:"leaving,omitempty"`
	Term      uint64 `json:"term"`
	LastIndex uint64 `json:"last_index"` // of the log
	LastTerm  uint64 `json:"last_term"`  // of the log's last entry
	// LastContact is the time since it heard from a leader; negative: never.
	LastContact time.Duration `json:"last_contact"`
	// WriteTime is how long its disk takes to write the log; 0: nothing was written lately.
	WriteTime time.Duration `json:"write_time,omitempty"`
	// Report describes the ledger.
	Report Report `json:"report"`
}

// Report describes a server's ledger to other servers.
type Report struct {
	// Leads: the server leads, and its ledger has caught up since it was elected.
	Leads bool `json:"leads,omitempty"`
	// Index is the index of the ledger's last entry.
	Index uint64 `json:"index"`
	// Room: its disk has room for more entries.
	Room bool `json:"room,omitempty"`
	// Cluster is the cluster's identity; empty: it has none yet.
	Cluster string `json:"cluster,omitempty"`
}

// reply answers other servers.
func (n *Node) reply(ctx context.Context, q ask) reply {
	// Other servers may ask as soon as the listener is open, which is before raft runs.
	select {
	case <-n.opened:
	case <-ctx.Done():
		return reply{}
	}
	var r reply
	switch {
	case q.Promise != nil:
		r.Promise = n.forming.give(ctx, *q.Promise)
	case q.Join != "":
		var err error
		if r.Joins, err = n.forming.join(q.Join); err != nil {
			n.forming.log.Error("the promise to join a cluster cannot be written to disk", "error", err)
			return reply{} // without an id
		}
	}
	r.Status = n.Status()
	return r
}

// Status returns this server's own status.
func (n *Node) Status() Status {
	s := Status{
		ID: n.cfg.ID, Formed: n.formed(), Expects: n.cfg.BootstrapExpect, PromisedTo: n.forming.promised().To,
		Leads: n.State() == raft.Leader, Leaving: n.leaving.Load(), Term: n.CurrentTerm(), LastIndex: n.LastIndex(),
		LastContact: n.SinceContact(), WriteTime: n.writeTime(),
	}
	stats := n.Stats()
	for _, last := range []string{"last_log_term", "last_snapshot_term"} { // after a snapshot the log may be empty
		if term, err := strconv.ParseUint(stats[last], 10, 64); err == nil {
			s.LastTerm = max(s.LastTerm, term)
		}
	}
	if f := n.GetConfiguration(); f.Error() == nil {
		for _, server := range f.Configuration().Servers {
			s.Servers = append(s.Servers, string(server.ID))
		}
	}
	if n.cfg.Report != nil {
		s.Report = n.cfg.Report()
	}
	return s
}

// SetLeaving records whether this server leaves the cluster, for the leader that asks.
func (n *Node) SetLeaving(leaving bool) { n.leaving.Store(leaving) }

// ErrAlone means that this server has no connection to other servers.
var ErrAlone = errors.New("this server has no transport to others")

// Ask asks another server for its status.
func (n *Node) Ask(ctx context.Context, server string) (Status, error) {
	if n.streams == nil {
		return Status{}, ErrAlone
	}
	r, err := n.streams.ask(ctx, server, ask{})
	return r.Status, err
}

// askAll asks all servers among the members that are alive, at once. Servers that do not answer are left out.
func (n *Node) askAll(ctx context.Context, members []discovery.Member) map[string]Status {
	var mu sync.Mutex
	var all sync.WaitGroup
	answered := map[string]Status{}
	for _, m := range members {
		if m.Role != discovery.Server || m.Status != discovery.Alive {
			continue
		}
		all.Go(func() {
			if s, err := n.Ask(ctx, m.Name); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answered[m.Name] = s
			}
		})
	}
	all.Wait()
	return answered
}

// formed reports whether this server has raft state.
func (n *Node) formed() bool { return n.LastIndex() > 0 }

// SinceContact returns the time since this server heard from its leader: 0 on the leader itself, negative if it
// never has.
func (n *Node) SinceContact() time.Duration {
	if n.State() == raft.Leader {
		return 0
	}
	last := n.LastContact()
	if last.IsZero() {
		return -1
	}
	return max(time.Since(last), 0)
}

// Peer is one server of raft's configuration.
type Peer struct {
	ID      string
	Address string // of its RPC port; empty: gossip has not seen it
	Gossip  discovery.Status
	Version string
	Voter   bool
	Leader  bool
	// Healthy: it answers, hears from the leader and lags by little. Answered: it answered at all; if not, the
	// fields below are empty.
	Healthy, Answered bool
	LastContact       time.Duration // since it heard from the leader; negative: never
	LastIndex         uint64
	LastTerm          uint64
}

// Peers returns the servers of raft's configuration as this server knows it, by name, after asking each of them.
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

// healthy applies autopilot's rule, relative to this server's log.
func (n *Node) healthy(s, measure Status) bool {
	conf := n.cfg.Autopilot()
	return s.LastContact >= 0 && s.LastContact <= conf.LastContactThreshold && s.LastTerm >= measure.LastTerm &&
		s.LastIndex+conf.MaxTrailingLogs >= measure.LastIndex
}
