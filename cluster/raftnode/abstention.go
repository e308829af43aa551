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

// A server that has lost a part of its log must not decide who leads: an entry that it once
// agreed to may be on one other server only, and with its vote one without that entry could win.
// So it abstains, over restarts too, until it has all that a leader had after the loss. An
// empty server may be one that has lost everything: it votes only for whom it has promised
// to form a cluster with.

// abstainsFile, in the raft directory, says why a server abstains, as long as it does.
const abstainsFile = "abstains.json"

// catchUpPause is how often a server that abstains looks whether it has caught up.
const catchUpPause = 100 * time.Millisecond

// errAbstains is the answer to whoever wants its vote.
var errAbstains = errors.New("this server has lost a part of its log: it does not vote until it has caught up")

// loss is why a server abstains.
type loss struct {
	// Why is what is damaged; empty: the server is new, or has lost everything.
	Why string `json:"why,omitempty"`
}

// abstention is whether this server abstains.
type abstention struct {
	path string

	mu   sync.Mutex
	loss *loss // nil: it does not
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
		return nil, fmt.Errorf("read why this server does not vote, %s: %w", a.path, err)
	}
	return a, nil
}

func (a *abstention) stands() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.loss != nil
}

// damage is what of this server's log was lost; empty: nothing that it knows of.
func (a *abstention) damage() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss == nil {
		return ""
	}
	return a.loss.Why
}

// begin notes a loss. A known one stands beside a new server's.
func (a *abstention) begin(l loss) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss != nil && l.Why == "" {
		return nil
	}
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := atomicfile.WriteFile(a.path, data); err != nil {
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

// catchUp ends the abstention when this server has all that a leader had at a moment after
// the start, and that leader has agreed to what this server has.
func (n *Node) catchUp(ctx context.Context) {
	var from Status
	for n.abstention.stands() {
		if from.Leads && n.CurrentTerm() == from.Term && n.CommitIndex() >= from.LastIndex {
			if err := n.abstention.end(); err != nil {
				n.logger.Error("this server has caught up and does not vote yet", "error", err)
			} else {
				n.logger.Named("log").Info("this server has caught up, and votes", "index", from.LastIndex, "from", from.ID)
				return
			}
		}
		if _, leader := n.LeaderWithID(); leader != "" && string(leader) != n.cfg.ID && (!from.Leads || n.CurrentTerm() != from.Term) {
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

// abstaining is the transport of a server that abstains at its start: as long as it does, no
// vote is given or asked for.
type abstainingTransport struct {
	*preVoteTransport
	abstention *abstention
	calls      chan raft.RPC
}

// run passes other servers' calls on.
func (t *abstainingTransport) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case call := <-t.NetworkTransport.Consumer():
			switch call.Command.(type) {
			case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest, *raft.TimeoutNowRequest:
				if t.abstention.stands() {
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

// Consumer has the calls of other servers (raft.Transport).
func (t *abstainingTransport) Consumer() <-chan raft.RPC { return t.calls }

// RequestVote asks for a server's vote (raft.Transport).
func (t *abstainingTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if t.abstention.stands() {
		return errAbstains
	}
	return t.preVoteTransport.RequestVote(id, target, args, resp)
}

// RequestPreVote asks whether a server would give its vote (raft.WithPreVote).
func (t *abstainingTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if t.abstention.stands() {
		return errAbstains
	}
	return t.preVoteTransport.RequestPreVote(id, target, args, resp)
}
