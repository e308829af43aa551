package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/internal/atomicfile"
)

// A server that has lost a part of its log must not take part in elections: an entry that it once acknowledged may
// be on only one other server, and with this server's vote a server without that entry could win. So it abstains,
// also over restarts, until it has everything that a leader had after the loss. An empty server may have lost
// everything: it votes only with the servers that it has promised to form a cluster with.

// abstainsFile, in the raft directory, exists as long as the server abstains, and explains why.
const abstainsFile = "abstains.json"

// catchUpPause is how often an abstaining server checks whether it has caught up.
const catchUpPause = 100 * time.Millisecond

// errAbstains answers requests for the vote.
var errAbstains = errors.New("this server has lost a part of its log: it does not vote until it has caught up")

// loss explains why a server abstains.
type loss struct {
	// Why describes the damage; empty: the server is new, or has lost everything.
	Why string `json:"why,omitempty"`
}

// abstention records whether this server abstains.
type abstention struct {
	path string

	mu   sync.Mutex
	loss *loss // nil: it does not abstain
}

func readAbstention(dir string) (*abstention, error) {
	a := &abstention{path: filepath.Join(dir, abstainsFile)}
	data, err := os.ReadFile(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &a.loss)
	}
	if err != nil {
		return nil, fmt.Errorf("read why this server abstains from votes, %s: %w", a.path, err)
	}
	return a, nil
}

func (a *abstention) active() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.loss != nil
}

// damage describes what this server's log has lost; empty: nothing known.
func (a *abstention) damage() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss == nil {
		return ""
	}
	return a.loss.Why
}

// begin records a loss. A new server (empty Why) does not replace a known loss.
func (a *abstention) begin(l loss) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss != nil && l.Why == "" {
		return nil
	}
	if err := atomicfile.WriteJSON(a.path, l); err != nil {
		return err
	}
	a.loss = &l
	return nil
}

func (a *abstention) end() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss == nil {
		return nil
	}
	if err := os.Remove(a.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	a.loss = nil
	return nil
}

// catchUp ends the abstention when this server has everything that a leader had at a time after the start, and
// that leader has replicated to it in the same term.
func (n *Node) catchUp(ctx context.Context) {
	var from Status
	for n.abstention.active() {
		if from.Leads && n.CurrentTerm() == from.Term && n.CommitIndex() >= from.LastIndex {
			if err := n.abstention.end(); err != nil {
				n.logger.Error("this server has caught up but cannot record that it votes again", "error", err)
			} else {
				n.logger.Named("log").Info("this server has caught up and votes again", "index", from.LastIndex, "from", from.ID)
				return
			}
		}
		if _, leader := n.LeaderWithID(); leader != "" && string(leader) != n.cfg.ID &&
			(!from.Leads || n.CurrentTerm() != from.Term) {
			if s, err := n.Ask(ctx, string(leader)); err == nil && s.Report.Leads {
				from = s
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(catchUpPause):
		}
	}
}

// abstainingTransport is the transport of a server that abstains when it starts: until it has caught up, it
// neither votes nor asks for votes.
type abstainingTransport struct {
	*confirmingTransport
	abstention *abstention
	calls      chan raft.RPC
}

// Without it raft would hold elections without pre-votes.
var (
	_ raft.WithPreVote = (*confirmingTransport)(nil)
	_ raft.WithPreVote = (*abstainingTransport)(nil)
)

// run passes other servers' calls on to raft.
func (t *abstainingTransport) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case call := <-t.NetworkTransport.Consumer():
			switch call.Command.(type) {
			case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest, *raft.TimeoutNowRequest:
				if t.abstention.active() {
					call.Respond(nil, errAbstains)
					continue
				}
			}
			select {
			case t.calls <- call:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Consumer returns the calls of other servers (raft.Transport).
func (t *abstainingTransport) Consumer() <-chan raft.RPC { return t.calls }

// RequestVote asks for a server's vote (raft.Transport).
func (t *abstainingTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	if t.abstention.active() {
		return errAbstains
	}
	return t.confirmingTransport.RequestVote(id, target, args, resp)
}

// RequestPreVote asks whether a server would give its vote (raft.WithPreVote).
func (t *abstainingTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	if t.abstention.active() {
		return errAbstains
	}
	return t.confirmingTransport.RequestPreVote(id, target, args, resp)
}
