package raftnode

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/internal/notify"
)

// Raft's VerifyLeader (1.8.0) counts the next answer of each server, even the answer to a request that was sent before
// VerifyLeader was called, and it counts servers without a vote. After a pause, or with a slow network, a leader would
// be confirmed by answers that are older than the election of its successor. So we count ourselves: only answers of
// voters, and only to requests that were sent after the question.

// confirmations counts the answers to this server's requests as the leader.
type confirmations struct {
	mu       sync.Mutex
	asked    uint64                   // questions so far
	answered map[raft.ServerID]answer // the last of each server
	next     notify.Broadcast
}

// answer is a server's statement that it was in a term after a question.
type answer struct{ term, question uint64 }

// ask begins a question and returns its number.
func (c *confirmations) ask() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.asked
}

// count sends a request, and counts the answer for the questions that were asked before.
func (c *confirmations) count(to raft.ServerID, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
	send func() error,
) error {
	c.mu.Lock()
	question := c.asked
	c.mu.Unlock()
	if err := send(); err != nil {
		return err
	}
	if resp.Term != args.Term {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.answered[to]; args.Term > before.term || args.Term == before.term && question > before.question {
		if c.answered == nil {
			c.answered = map[raft.ServerID]answer{}
		}
		c.answered[to] = answer{args.Term, question}
		c.next.Notify()
	}
	return nil
}

// majority reports whether a majority of the voters was in a term after a question: then no other server had been
// elected for a later term when it was asked, since a majority votes, and a server's term only grows.
func (c *confirmations) majority(servers []raft.Server, self raft.ServerID, term, question uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	voters, yes := 0, 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if a := c.answered[s.ID]; s.ID == self || a.term == term && a.question >= question {
			yes++
		}
	}
	return yes > voters/2
}

// confirmingTransport counts confirmations, ends pipelines that were refused (pipeline), and sends nothing as the
// leader while that is withheld (Node.Resign).
type confirmingTransport struct {
	*raft.NetworkTransport
	confirmations *confirmations
	withheld      *atomic.Bool
}

// AppendEntries is raft's heartbeat, too.
func (t *confirmingTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	if t.withheld.Load() {
		return errWithheld
	}
	return t.confirmations.count(id, args, resp, func() error {
		return t.NetworkTransport.AppendEntries(id, target, args, resp)
	})
}

// ConfirmLeader returns nil if no other server had been elected when it was called. This server leads in the term, and
// ctx ends when it no longer does.
func (n *Node) ConfirmLeader(ctx context.Context, term uint64) error {
	return n.confirmed(ctx, term, n.confirmations.ask())
}

func (n *Node) confirmed(ctx context.Context, term, question uint64) error {
	f := n.GetConfiguration()
	if err := f.Error(); err != nil {
		return err
	}
	for asked := false; ; asked = true {
		next := n.confirmations.next.Wait()
		if n.confirmations.majority(f.Configuration().Servers, raft.ServerID(n.cfg.ID), term, question) {
			return nil
		}
		if !asked {
			n.VerifyLeader() // sends every server a heartbeat at once
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
