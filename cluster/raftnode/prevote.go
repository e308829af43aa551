package raftnode

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/internal/notify"
)

// Before an election, a candidate asks the other servers whether they would vote for it (pre-vote). When that
// fails, or when two candidates are both told yes and then split the votes, raft waits for a whole election
// timeout. Both can be avoided: the requests that a server receives tell it who else is a candidate, and which of
// the candidates can win.

// preVoteTracker remembers the pre-vote requests that this server has received.
type preVoteTracker struct {
	mu   sync.Mutex
	last map[raft.ServerID]preVote
	n    int // requests so far
	next notify.Broadcast
}

// preVote is the last request of one server.
type preVote struct {
	raft.RequestPreVoteRequest
	n  int // number of the request, from 1
	at time.Time
}

func newPreVoteTracker() *preVoteTracker {
	return &preVoteTracker{last: map[raft.ServerID]preVote{}}
}

// observe records pre-vote requests (raft.FilterFn), whatever raft answers to them.
func (p *preVoteTracker) observe(o *raft.Observation) bool {
	asked, ok := o.Data.(raft.RequestPreVoteRequest)
	if !ok {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	p.last[raft.ServerID(asked.ID)] = preVote{asked, p.n, time.Now()}
	p.next.Notify()
	return false
}

// received returns how many requests there were so far; the next request closes next.
func (p *preVoteTracker) received() (n int, next <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n, p.next.Wait()
}

// askedSince reports whether a server has asked after a given time.
func (p *preVoteTracker) askedSince(id raft.ServerID, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[id].at.After(since)
}

// any reports whether the last request of some server satisfies match.
func (p *preVoteTracker) any(match func(preVote) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.last {
		if match(q) {
			return true
		}
	}
	return false
}

// preVoteTransport is the transport of a server that takes other candidates into account.
type preVoteTransport struct {
	*raft.NetworkTransport
	preVotes      *preVoteTracker
	confirmations *confirmations
	ctx           context.Context // ends with the server
}

// RequestPreVote asks whether a server would vote for this one (raft.WithPreVote). After a no it asks again once
// this server can win. A yes is turned into a no if another candidate that must win has asked in the meantime: it
// was told yes too, and both would split the votes.
func (t *preVoteTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress,
	own *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	patience := time.After(heartbeat) // raft waits one to two heartbeat timeouts
	for {
		n, next := t.preVotes.received()
		*resp = raft.RequestPreVoteResponse{}
		err := t.NetworkTransport.RequestPreVote(id, target, own, resp)
		switch {
		case err != nil || resp.Term > own.Term:
			return err
		case resp.Granted:
			resp.Granted = !t.preVotes.any(func(q preVote) bool { return q.n > n && precedes(q, own) })
			return nil
		}
		for !t.canWin(own, n) {
			select {
			case <-next:
			case <-patience:
				return nil
			case <-t.ctx.Done():
				return nil
			}
			_, next = t.preVotes.received()
		}
	}
}

// canWin reports whether this server is the candidate that must win, and has refused another candidate for lacking
// entries after the n-th request. Then no other candidate can win.
func (t *preVoteTransport) canWin(own *raft.RequestPreVoteRequest, n int) bool {
	return t.preVotes.any(func(q preVote) bool { return q.n > n && longer(own, &q.RequestPreVoteRequest) }) &&
		!t.preVotes.any(func(q preVote) bool { return q.Term == own.Term && precedes(q, own) })
}

// precedes reports whether, of two candidates, the one that sent q must win: its log is longer or, with equal
// logs, its name sorts first.
func precedes(q preVote, own *raft.RequestPreVoteRequest) bool {
	asked := &q.RequestPreVoteRequest
	return longer(asked, own) || !longer(own, asked) && string(asked.ID) < string(own.ID)
}

// longer compares logs as raft does when it votes.
func longer(a, b *raft.RequestPreVoteRequest) bool {
	return a.LastLogTerm > b.LastLogTerm || a.LastLogTerm == b.LastLogTerm && a.LastLogIndex > b.LastLogIndex
}
