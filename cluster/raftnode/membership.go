package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/pannier/pannier/cluster/discovery"
)

// The leader checks the servers at least this often; changes of gossip are followed at once.
const (
	statusInterval    = 2 * time.Second
	reconcileInterval = 10 * time.Second
	changeTimeout     = 10 * time.Second // bounds one change of the configuration
	// leaveTimeout bounds the question whether a server leaves.
	leaveTimeout = time.Second
	// asksBeforeDead is how often in a row a server must not answer before it is removed as dead, whatever gossip says.
	asksBeforeDead = 3
)

// Manage maintains raft's configuration until ctx ends: servers that gossip knows become non-voters, then voters;
// servers that have left or are dead are removed. Only the leader calls it, once its ledger has the cluster's
// identity.
func (n *Node) Manage(ctx context.Context) {
	if n.streams == nil {
		<-ctx.Done()
		return
	}
	conf := n.cfg.Autopilot()
	update := min(statusInterval, max(conf.ServerStabilizationTime/4, 50*time.Millisecond))
	m := &manager{n: n, began: time.Now(), silence: asksBeforeDead * update, answered: map[raft.ServerID]time.Time{}}
	pilot := autopilot.New(n.Raft, m,
		autopilot.WithUpdateInterval(update),
		autopilot.WithReconcileInterval(min(reconcileInterval, max(conf.ServerStabilizationTime/2, 100*time.Millisecond))),
		autopilot.WithLogger(quieter(n.logger, n.cfg)), autopilot.WithPromoter(&promoter{m: m}))
	pilot.Start(ctx)
	for {
		changed := n.cfg.Members.Changed()
		m.follow(ctx)
		select {
		case <-ctx.Done():
			<-pilot.Stop()
			m.removals.Wait()
			return
		case <-changed:
		case <-time.After(statusInterval):
		}
	}
}

// manager implements what autopilot asks for (autopilot.ApplicationIntegration).
type manager struct {
	n        *Node
	began    time.Time
	silence  time.Duration // after which a server may be dead
	removals sync.WaitGroup

	mu       sync.Mutex
	answered map[raft.ServerID]time.Time
}

// follow brings raft's servers in line with the servers that gossip knows.
func (m *manager) follow(ctx context.Context) {
	servers, err := m.n.servers()
	if err != nil {
		return // raft is being closed
	}
	for _, member := range m.n.cfg.Members.Members() {
		if ctx.Err() != nil {
			return
		}
		in := slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.ID) == member.Name })
		var err error
		level := hclog.Info
		switch {
		case member.Role == discovery.Server && member.Status == discovery.Alive && !in:
			err = m.admit(ctx, member.Name)
		case in && member.Status == discovery.Left && member.Name != m.n.cfg.ID:
			err, level = m.release(ctx, member.Name, servers), hclog.Warn
		}
		if err != nil && ctx.Err() == nil {
			m.n.forming.tell(level, "the cluster's servers cannot be changed", "server", member.Name, "error", err)
		}
	}
}

// release removes a server that says itself, with its certificate, that it leaves. Gossip alone is not enough: whoever
// has its key can say so of every server. One that does not answer is removed like any that is dead
// (RemoveFailedServer).
func (m *manager) release(ctx context.Context, name string, servers []raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	s, err := m.n.Ask(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("gossip says that the server has left; it stays until it is removed as dead: %w", err)
	case !s.Leaving:
		return errors.New("gossip says that the server has left, and the server says that it has not: if this comes again, " +
			"somebody else may have the gossip key, so change it (pannier keyring)")
	}
	if quorum := m.n.cfg.Autopilot().MinQuorum; voters(servers, name) < quorum {
		return fmt.Errorf("the server leaves, and only %d voters would be left, fewer than autopilot's min_quorum of %d",
			voters(servers, name), quorum)
	}
	m.n.logger.Info("a server has left", "server", name)
	return m.n.RemoveServer(raft.ServerID(name), 0, changeTimeout).Error()
}

// voters returns how many voters there are besides one server.
func voters(servers []raft.Server, besides string) (n int) {
	for _, s := range servers {
		if s.Suffrage == raft.Voter && string(s.ID) != besides {
			n++
		}
	}
	return n
}

// admit adds a server as a non-voter. A server with another cluster's raft state, or that joins another cluster, is
// refused: one of the two logs would be lost.
func (m *manager) admit(ctx context.Context, name string) error {
	identity := m.n.cfg.Report().Cluster
	r, err := m.n.streams.ask(ctx, name, ask{Join: identity})
	if err != nil {
		return err
	}
	s := r.Status
	if s.ID != name {
		return fmt.Errorf("server %q cannot promise to join: its log says why", name)
	}
	known := identity != "" && s.Report.Cluster == identity ||
		s.Report.Cluster == "" && slices.Contains(s.Servers, m.n.cfg.ID)
	if s.Formed && !known {
		return fmt.Errorf("server %q belongs to another cluster (%q, not %q): "+
			"stop it, and remove its ledger if it is to join this one",
			name, s.Report.Cluster, identity)
	}
	if !s.Formed && r.Joins != identity {
		return fmt.Errorf("server %q joins another cluster (%q, not %q): "+
			"stop it, and remove its ledger if it is to join this one", name, r.Joins, identity)
	}
	m.n.logger.Info("a server joins", "server", name)
	return m.n.AddNonvoter(raft.ServerID(name), raft.ServerAddress(name), 0, changeTimeout).Error()
}

// servers returns raft's latest configuration.
func (n *Node) servers() ([]raft.Server, error) {
	f := n.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, err
	}
	return f.Configuration().Servers, nil
}

// AutopilotConfig returns the present configuration in the library's type.
func (m *manager) AutopilotConfig() *autopilot.Config {
	c := m.n.cfg.Autopilot()
	quorum := c.MinQuorum
	if quorum == 0 {
		quorum = m.n.cfg.BootstrapExpect
	}
	return &autopilot.Config{
		CleanupDeadServers: c.CleanupDeadServers, LastContactThreshold: c.LastContactThreshold,
		MaxTrailingLogs: c.MaxTrailingLogs,
		MinQuorum:       uint(max(quorum, 0)), ServerStabilizationTime: c.ServerStabilizationTime,
	}
}

// NotifyState does nothing: Peers computes the state when it is asked for.
func (m *manager) NotifyState(*autopilot.State) {}

// KnownServers returns the servers that gossip knows.
func (m *manager) KnownServers() map[raft.ServerID]*autopilot.Server {
	status := map[discovery.Status]autopilot.NodeStatus{
		discovery.Alive: autopilot.NodeAlive, discovery.Leaving: autopilot.NodeAlive,
		discovery.Left: autopilot.NodeLeft, discovery.Failed: autopilot.NodeFailed,
	}
	known := map[raft.ServerID]*autopilot.Server{}
	for _, member := range m.n.cfg.Members.Members() {
		if member.Role != discovery.Server {
			continue
		}
		id := raft.ServerID(member.Name)
		known[id] = &autopilot.Server{
			ID: id, Name: member.Name, Address: raft.ServerAddress(member.Name), NodeStatus: status[member.Status],
			Version: member.Version, RaftVersion: 3, IsLeader: member.Name == m.n.cfg.ID, NodeType: autopilot.NodeVoter,
		}
	}
	return known
}

// FetchServerStats asks all servers at once.
func (m *manager) FetchServerStats(ctx context.Context,
	servers map[raft.ServerID]*autopilot.Server,
) map[raft.ServerID]*autopilot.ServerStats {
	stats := map[raft.ServerID]*autopilot.ServerStats{}
	var all sync.WaitGroup
	for id := range servers {
		all.Go(func() {
			s, err := m.n.Ask(ctx, string(id))
			if err != nil {
				return
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.answered[id] = time.Now()
			stats[id] = &autopilot.ServerStats{LastContact: s.LastContact, LastTerm: s.LastTerm, LastIndex: s.LastIndex}
		})
	}
	all.Wait()
	return stats
}

// RemoveFailedServer removes a dead server.
func (m *manager) RemoveFailedServer(s *autopilot.Server) {
	m.removals.Go(func() {
		m.n.logger.Warn("removing a dead server", "server", s.ID)
		err := m.n.RemoveServer(s.ID, 0, changeTimeout).Error()
		if err == nil {
			err = m.n.cfg.Members.ForceLeave(string(s.ID), false)
		}
		if err != nil {
			m.n.logger.Warn("a dead server could not be removed", "server", s.ID, "error", err)
		}
	})
}

// promoter promotes stable servers, and does not remove servers that may be alive.
type promoter struct {
	autopilot.StablePromoter
	m *manager
}

// FilterFailedServerRemovals keeps servers that gossip does not know: after all servers were down at once, the
// leader may know none of them. It also keeps servers that have answered lately, whatever gossip says.
func (p *promoter) FilterFailedServerRemovals(c *autopilot.Config, _ *autopilot.State,
	f *autopilot.FailedServers,
) *autopilot.FailedServers {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	answers := func(s *autopilot.Server) bool {
		last := p.m.answered[s.ID]
		if last.Before(p.m.began) {
			last = p.m.began
		}
		return time.Since(last) < max(c.LastContactThreshold, p.m.silence)
	}
	return &autopilot.FailedServers{
		FailedNonVoters: slices.DeleteFunc(f.FailedNonVoters, answers),
		FailedVoters:    slices.DeleteFunc(f.FailedVoters, answers),
	}
}
