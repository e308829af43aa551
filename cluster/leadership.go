package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/internal/notify"
)

// leadership records whether this node leads, and whether its ledger has caught up since the start.
type leadership struct {
	mu      sync.Mutex
	ctx     context.Context // ends with the present leadership; nil: this node does not lead
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

// since returns the term in which this node leads; 0: it does not.
func (l *leadership) since() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		return 0
	}
	return l.term
}

// caughtUp records that the ledger has everything that was agreed on before the start.
func (l *leadership) caughtUp() { l.readyOnce.Do(func() { close(l.ready) }) }

// set begins a leadership in a term, or ends the present one (term 0).
func (l *leadership) set(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	leads := term != 0
	if leads == (l.ctx != nil) {
		return
	}
	if l.term = term; leads {
		l.ctx, l.cancel = context.WithCancel(context.WithValue(context.Background(), termKey{}, term))
		l.caughtUp()
	} else {
		l.cancel()
		l.ctx, l.cancel = nil, nil
	}
	l.changed.Notify()
}

// followLeadership follows raft's leadership changes. A new leader's ledger may lack entries of earlier leaders,
// so callers see it as leader only when it has applied them.
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
				// Leadership was lost again: raft reports that next.
				n.log.Debug("leadership ended before the ledger had caught up", "error", err)
				continue
			}
			n.leadership.set(term)
		}
	}
}

// How often a follower checks whether its ledger has caught up, before and after it knows the target.
const (
	leaderPause  = 100 * time.Millisecond
	catchUpPause = 10 * time.Millisecond
)

// catchUp marks this node as ready when, as a follower, its ledger has what the leader's ledger had at a time
// after the start: that includes everything acknowledged before.
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

// Leader reports whether this node leads and has caught up.
func (n *Node) Leader() bool {
	ctx, _ := n.leadership.get()
	return ctx != nil
}

// WaitReady waits until this node's ledger has everything that the cluster agreed on before the node started: when
// it first leads, or when it has everything that the leader had when it was asked.
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

// termKey is the key of the leader's term in a context of WhileLeader.
type termKey struct{}

// WhileLeader calls fn each time this node becomes the leader, with a context that ends with the leadership, and
// waits for fn to return. Commands that are applied with this context are decisions of this leader: they go into its
// own log, and have no effect in another term (ErrNotLeader). If fn returns earlier, it is not called again under the
// same leadership. WhileLeader returns when ctx ends or the node is closed.
func (n *Node) WhileLeader(ctx context.Context, fn func(ctx context.Context)) {
	for ctx.Err() == nil {
		leading, changed := n.leadership.get()
		if leading != nil {
			work, cancel := context.WithCancel(context.WithValue(ctx, termKey{}, leading.Value(termKey{})))
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

// Ready returns a channel that is closed when this node's ledger has caught up: see WaitReady.
func (n *Node) Ready() <-chan struct{} { return n.leadership.ready }

// Term returns raft's term in which this node leads, to distinguish it from earlier and later leaders; 0: it does
// not lead.
func (n *Node) Term() uint64 { return n.leadership.since() }
