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
type rivals struct {
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

func newRivals() *rivals {
	return &rivals{last: map[raft.ServerID]preVote{}}
}

// hear notes what raft is asked (raft.FilterFn), whatever it answers.
func (r *rivals) hear(o *raft.Observation) bool {
	asked, ok := o.Data.(raft.RequestPreVoteRequest)
	if !ok {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	r.last[raft.ServerID(asked.ID)] = preVote{asked, r.n, time.Now()}
	r.next.Notify()
	return false
}

// heard is how many questions there were; the next one closes next.
func (r *rivals) heard() (n int, next <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n, r.next.Wait()
}

// looked says whether a server has asked since a moment.
func (r *rivals) looked(id raft.ServerID, since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[id].at.After(since)
}

// any says whether a server's last question is such a one.
func (r *rivals) any(such func(preVote) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.last {
		if such(q) {
			return true
		}
	}
	return false
}

// competing is the transport of a server that heeds its rivals.
type competing struct {
	*raft.NetworkTransport
	rivals *rivals
	ctx    context.Context // ends with the server
}

// RequestPreVote asks whether a server would vote for this one (raft.WithPreVote). It asks again when this server
// can win after all. A yes counts as a no where another one, which is to win, has asked in the meantime: it
// was told yes too.
func (t *competing) RequestPreVote(id raft.ServerID, target raft.ServerAddress, own *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	patience := time.After(heartbeat) // raft's is one to two such times
	for {
		n, next := t.rivals.heard()
		*resp = raft.RequestPreVoteResponse{}
		err := t.NetworkTransport.RequestPreVote(id, target, own, resp)
		switch {
		case err != nil || resp.Term > own.Term:
			return err
		case resp.Granted:
			resp.Granted = !t.rivals.any(func(q preVote) bool { return q.n > n && precedes(q, own) })
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
			_, next = t.rivals.heard()
		}
	}
}

// canWin says that this server has refused one that lacks entries, later than the n-th question, and
// that it is the one to win. So nobody else will.
func (t *competing) canWin(own *raft.RequestPreVoteRequest, n int) bool {
	return t.rivals.any(func(q preVote) bool { return q.n > n && longer(own, &q.RequestPreVoteRequest) }) &&
		!t.rivals.any(func(q preVote) bool { return q.Term == own.Term && precedes(q, own) })
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
