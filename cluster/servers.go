package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/raftnode"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/internal/errcode"
)

// Types of raftnode that callers need.
type (
	// Members lists the agents of the cluster: a *discovery.Discovery.
	Members = raftnode.Members
	// Peer is one server of raft's configuration.
	Peer = raftnode.Peer
)

// Errors of operations on servers.
var (
	// ErrNoPeer: raft's configuration has no such server.
	ErrNoPeer = errcode.NotFound.New("no such server in the cluster")
	// ErrQuorum: fewer voters would be left than must be.
	ErrQuorum = errcode.FailedPrecondition.New("the cluster needs this server's vote")
	// ErrPeerAlive: the server is alive; it would be added again at once.
	ErrPeerAlive = errcode.FailedPrecondition.New("the server is alive")
)

// report describes this server's ledger to other servers.
func (n *Node) report() raftnode.Report {
	r := raftnode.Report{Leads: n.Leader(), Index: n.store.AppliedIndex(), Room: needSpace(n.dir, SpaceToGrow) == nil}
	err := n.store.View(func(tx *state.ReadTx) error {
		c, _, err := tx.Cluster()
		r.Cluster = c.ID
		return err
	})
	if err != nil {
		n.log.Debug("the ledger's identity cannot be read", "error", err)
	}
	return r
}

// manage manages the other servers while this one leads.
func (n *Node) manage(ctx context.Context) {
	for ctx.Err() == nil {
		_, err := n.Identity(ctx)
		if err == nil {
			n.raft.Manage(ctx)
			return
		}
		n.log.Debug("the cluster has no identity yet", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(leaderPause):
		}
	}
}

// Peers returns the servers of the cluster as this one knows it, by name, after asking each for its status.
func (n *Node) Peers(ctx context.Context) ([]Peer, error) { return n.raft.Peers(ctx) }

// Autopilot returns the settings by which this server manages the others, or would: the operator's settings from the
// ledger, or else its configuration's.
func (n *Node) Autopilot() claim.Autopilot {
	var a claim.Autopilot
	var found bool
	err := n.store.View(func(tx *state.ReadTx) (err error) {
		a, found, err = tx.Autopilot()
		return err
	})
	if err != nil {
		n.log.Debug("what the ledger says of autopilot cannot be read", "error", err)
	}
	if !found {
		return n.autopilot
	}
	return a
}

// SetAutopilot changes the settings on all servers, permanently, and returns the new ones. Errors: ErrInvalid.
func (n *Node) SetAutopilot(ctx context.Context, by claim.AutopilotChange) (claim.Autopilot, error) {
	return Apply(ctx, n, &command.SetAutopilot{Change: by, First: n.autopilot})
}

// TransferLeadership makes another voter the leader: the named one or, if name is empty, the one with the newest
// log. Errors: ErrNotLeader, ErrNoPeer.
func (n *Node) TransferLeadership(ctx context.Context, name string) error {
	if !n.Leader() {
		return command.ErrNotLeader
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	transfer := n.raft.LeadershipTransfer
	if name != "" {
		voters, err := n.Voters()
		if err != nil {
			return err
		}
		if !slices.Contains(voters, name) {
			return fmt.Errorf("transfer the lead to %q: %w: its voters are %s", name, ErrNoPeer, strings.Join(voters, ", "))
		}
		if name == n.name {
			return nil
		}
		transfer = func() raft.Future {
			return n.raft.LeadershipTransferToServer(raft.ServerID(name), raft.ServerAddress(name))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, transferPatience)
	defer cancel()
	for {
		err := transfer().Error()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("transfer the lead: %w", err)
		case <-time.After(leaderPause):
		}
		// Raft gives up if the other server does not lead within an election timeout, but it may lead a moment
		// later.
		switch leader := n.Stats().LeaderName; leader {
		case n.name, "":
		case name:
			return nil
		default:
			if name == "" {
				return nil
			}
			return fmt.Errorf("transfer the lead to %q: server %q leads now: %w", name, leader, command.ErrNotLeader)
		}
	}
}

// transferPatience is how long a leader tries to transfer the leadership.
const transferPatience = 10 * time.Second

// Servers returns the names of all servers in raft's configuration, voters or not.
func (n *Node) Servers() (names []string, err error) {
	f := n.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, raftError(err)
	}
	for _, s := range f.Configuration().Servers {
		names = append(names, string(s.ID))
	}
	return names, nil
}

// Votes reports whether this server is a voter.
func (n *Node) Votes() bool {
	voters, err := n.Voters()
	return err == nil && slices.Contains(voters, n.name)
}

// Voters returns the names of the servers that vote, as this server knows them.
func (n *Node) Voters() (names []string, err error) {
	f := n.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, raftError(err)
	}
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			names = append(names, string(s.ID))
		}
	}
	return names, nil
}

// RemovePeer removes a server that will not come back. Errors: ErrNotLeader, ErrNoPeer; ErrPeerAlive if the server
// is alive: it must leave, or be stopped, first.
func (n *Node) RemovePeer(ctx context.Context, name string) error {
	if !n.Leader() {
		return command.ErrNotLeader
	}
	servers, err := n.Servers()
	if err != nil {
		return err
	}
	if !slices.Contains(servers, name) {
		return fmt.Errorf("remove the server %q: %w", name, ErrNoPeer)
	}
	if _, err := n.raft.Ask(ctx, name); err == nil || name == n.name {
		return fmt.Errorf("remove the server %q: %w: it answers; run on it: pannier agent leave", name, ErrPeerAlive)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := n.raft.RemoveServer(raft.ServerID(name), 0, 0).Error(); err != nil {
		return fmt.Errorf("remove the server %q: %w", name, raftError(err))
	}
	return nil
}

// Leave removes this server from the cluster: it transfers the leadership, announces by leave (discovery's Leave)
// that it goes, and waits until the others have removed it. A single server just leaves. Errors: ErrQuorum.
func (n *Node) Leave(ctx context.Context, leave func() error) error {
	voters, err := n.Voters()
	if err != nil {
		return err
	}
	alone := len(voters) == 1 && voters[0] == n.name
	if n.Leader() && !alone {
		if err := n.TransferLeadership(ctx, ""); err != nil {
			return err
		}
	}
	if quorum := n.Autopilot().MinQuorum; slices.Contains(voters, n.name) && len(voters)-1 < quorum {
		return fmt.Errorf("%w: %d voters would be left, and autopilot's min_quorum is %d: add a server first, or lower it "+
			"(pannier operator autopilot set -min-quorum=%d)", ErrQuorum, len(voters)-1, quorum, len(voters)-1)
	}
	n.raft.SetLeaving(true)
	if err := leave(); err != nil || alone {
		n.raft.SetLeaving(err == nil)
		return err
	}
	for {
		// A removed server does not learn who leads, so ask each of the others.
		for _, other := range voters {
			if other == n.name {
				continue
			}
			s, err := n.raft.Ask(ctx, other)
			if err == nil && s.Report.Leads && !slices.Contains(s.Servers, n.name) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("leave the cluster: %w: the others have not removed this server yet", context.Cause(ctx))
		case <-time.After(leaderPause):
		}
	}
}

// registered returns the address that a server has registered; empty: none.
func (n *Node) registered(server string) (address string) {
	err := n.store.View(func(tx *state.ReadTx) error {
		known, err := tx.Node(server)
		address = known.Address
		return err
	})
	if err != nil && !errors.Is(err, claim.ErrNodeNotFound) {
		n.log.Debug("the address of a server cannot be read from the ledger", "server", server, "error", err)
	}
	return address
}

// vet refuses a server that is another machine than the one that the ledger has under its name. It would vote twice,
// or forget its vote.
func (n *Node) vet(m discovery.Member) error {
	var known claim.Node
	err := n.store.View(func(tx *state.ReadTx) (err error) {
		known, err = tx.Node(m.Name)
		return err
	})
	switch {
	case errors.Is(err, claim.ErrNodeNotFound), err == nil && m.Machine == "", err == nil && known.SecretHash == "":
		return nil
	case err == nil && claim.Machine(known.SecretHash) != m.Machine:
		return fmt.Errorf("server %q at %s: %w: if it replaces the other machine, run \"pannier node purge %s\"; if both exist,"+
			" rename one of them", m.Name, m.RPC, claim.ErrNodeSecret, m.Name)
	default:
		return err
	}
}
