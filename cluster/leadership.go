package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/internal/notify"
)

// leadership is what this node knows of its own: whether it leads now, and
// whether its ledger has caught up since the start.
type leadership struct {
	mu      sync.Mutex
	ctx     context.Context // of the present leadership; nil: this node does not lead
	cancel  context.CancelFunc
	term    uint64 // in which this node leads
	changed notify.Broadcast

	ready     chan struct{} // closed when the ledger has caught up
	readyOnce sync.Once
}

func (l *leadership) init() {
	l.ready = make(chan struct{})
}

func (l *leadership) get() (ctx context.Context, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx, l.changed.Wait()
}

// since is the term in which this node leads; 0: it does not.
func (l *leadership) since() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		return 0
	}
	return l.term
}

// caughtUp notes that the ledger has all that was agreed on before the start.
func (l *leadership) caughtUp() { l.readyOnce.Do(func() { close(l.ready) }) }

// set begins a leadership in a term, or ends the present one: term 0.
func (l *leadership) set(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	leads := term != 0
	if leads == (l.ctx != nil) {
		return
	}
	if l.term = term; leads {
		l.ctx, l.cancel = context.WithCancel(context.Background())
		l.caughtUp()
	} else {
		l.cancel()
		l.ctx, l.cancel = nil, nil
	}
	l.changed.Notify()
}

// followLeadership turns raft's news into leadership. A new leader's ledger may lack
// entries of the leader before: it leads, for its callers, when it has them.
func (n *Node) followLeadership(ctx context.Context) {
	defer n.leadership.set(0)
	for {
		select {
		case <-ctx.Done():
			return
		case leads := <-n.raft.Leadership:
			n.leadership.set(0)
			if !leads {
				continue
			}
			term := n.raft.CurrentTerm()
			if err := n.raft.Barrier(0).Error(); err != nil {
				// Leadership was lost again: raft says so next.
				n.log.Debug("leadership ended before the ledger had caught up", "error", err)
				continue
			}
			n.leadership.set(term)
		}
	}
}

// Intervals at which a server that does not lead looks whether its ledger has caught up.
const (
	leaderPause  = 100 * time.Millisecond
	catchUpPause = 10 * time.Millisecond
)

// catchUp makes this node ready as a follower: when its ledger has what the leader's had at a moment
// after the start. All that was acknowledged before is in that one.
func (n *Node) catchUp(ctx context.Context) {
	var target uint64
	known := false
	for ctx.Err() == nil && !n.isReady() {
		if known && n.store.AppliedIndex() >= target {
			n.leadership.caughtUp()
			return
		}
		pause := catchUpPause
		if !known {
			pause = leaderPause
			if _, leader := n.raft.LeaderWithID(); leader != "" && string(leader) != n.name {
				s, err := n.raft.Ask(ctx, string(leader))
				known, target = err == nil && s.Report.Leads, s.Report.Index
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (n *Node) isReady() bool {
	select {
	case <-n.leadership.ready:
		return true
	default:
		return false
	}
}

// Leader says whether this node leads and has caught up.
func (n *Node) Leader() bool {
	ctx, _ := n.leadership.get()
	return ctx != nil
}

// WaitReady waits until this node's ledger has all that the cluster agreed on
// before the node started. A node knows that when it first leads, or when it has all that
// the leader had when it was asked.
func (n *Node) WaitReady(ctx context.Context) error {
	if n.isReady() {
		return nil
	}
	select {
	case <-n.leadership.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-n.running.Done():
		return command.ErrClosed
	}
}

// WhileLeader calls fn each time that this node comes to lead, with a context that
// ends when it does not any more, and waits for it to return. It returns when ctx
// ends, or the node is closed. When fn returns by itself it is not called again under the same
// leadership.
func (n *Node) WhileLeader(ctx context.Context, fn func(ctx context.Context)) {
	for ctx.Err() == nil {
		leading, changed := n.leadership.get()
		if leading != nil {
			work, cancel := context.WithCancel(ctx)
			stop := context.AfterFunc(leading, cancel) //nolint:contextcheck // the work has two ends: the caller's and the leadership's
			fn(work)
			stop()
			cancel()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-n.running.Done():
			return
		}
	}
}

// Ready is closed when this node's ledger has caught up: see WaitReady.
func (n *Node) Ready() <-chan struct{} { return n.leadership.ready }

// Term is raft's term in which this node leads, so that others can tell it from leaders
// before and after it; 0: it does not lead.
func (n *Node) Term() uint64 { return n.leadership.since() }
