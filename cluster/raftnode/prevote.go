package raftnode

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/internal/notify"
)

// A server that looks for another leader asks the others first whether they would vote for it. Raft waits
// for a whole election timeout where that fails, or where two are told yes and split the votes. But the
// questions of the others tell a server who has looked already, and who of them can win.

// rivals are the servers that have asked this one.
type preVoteTracker struct {
	mu   sync.Mutex
	last map[raft.ServerID]preVote
	n    int // questions so far
	next notify.Broadcast
}

// preVote is what a server asked.
type preVote struct {
	raft.RequestPreVoteRequest
	n  int // it was the n-th
	at time.Time
}

func newPreVoteTracker() *preVoteTracker {
	return &preVoteTracker{last: map[raft.ServerID]preVote{}}
}

// hear notes what raft is asked (raft.FilterFn), whatever it answers.
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

// heard is how many questions there were; the next one closes next.
func (p *preVoteTracker) received() (n int, next <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n, p.next.Wait()
}

// looked says whether a server has asked since a moment.
func (p *preVoteTracker) askedSince(id raft.ServerID, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[id].at.After(since)
}

// any says whether a server's last question is such a one.
func (p *preVoteTracker) any(such func(preVote) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.last {
		if such(q) {
			return true
		}
	}
	return false
}

// competing is the transport of a server that heeds its rivals.
type preVoteTransport struct {
	*raft.NetworkTransport
	preVotes *preVoteTracker
	ctx      context.Context // ends with the server
}

// RequestPreVote asks whether a server would vote for this one (raft.WithPreVote). It asks again when this server
// can win after all. A yes counts as a no where another one, which is to win, has asked in the meantime: it
// was told yes too.
func (t *preVoteTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, own *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	patience := time.After(heartbeat) // raft's is one to two such times
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

// canWin says that this server has refused one that lacks entries, later than the n-th question, and
// that it is the one to win. So nobody else will.
func (t *preVoteTransport) canWin(own *raft.RequestPreVoteRequest, n int) bool {
	return t.preVotes.any(func(q preVote) bool { return q.n > n && longer(own, &q.RequestPreVoteRequest) }) &&
		!t.preVotes.any(func(q preVote) bool { return q.Term == own.Term && precedes(q, own) })
}

// precedes says that of two who look, the one that asked q is to win: its log is longer, or else its
// name comes first.
func precedes(q preVote, own *raft.RequestPreVoteRequest) bool {
	asked := &q.RequestPreVoteRequest
	return longer(asked, own) || !longer(own, asked) && string(asked.ID) < string(own.ID)
}

// longer compares logs as those who vote do.
func longer(a, b *raft.RequestPreVoteRequest) bool {
	return a.LastLogTerm > b.LastLogTerm || a.LastLogTerm == b.LastLogTerm && a.LastLogIndex > b.LastLogIndex
}
