package cluster

import (
	"context"
	"sync"
)

// leadership is what this node knows of its own: whether it leads now, and
// whether its ledger has caught up since the start.
type leadership struct {
	mu      sync.Mutex
	ctx     context.Context // of the present leadership; nil: this node does not lead
	cancel  context.CancelFunc
	changed chan struct{} // closed by the next change

	ready     chan struct{} // closed when the ledger has caught up
	readyOnce sync.Once
}

func (l *leadership) init() {
	l.changed = make(chan struct{})
	l.ready = make(chan struct{})
}

func (l *leadership) get() (ctx context.Context, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx, l.changed
}

// set begins a leadership, or ends the present one.
func (l *leadership) set(leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if leads == (l.ctx != nil) {
		return
	}
	if leads {
		l.ctx, l.cancel = context.WithCancel(context.Background())
		l.readyOnce.Do(func() { close(l.ready) })
	} else {
		l.cancel()
		l.ctx, l.cancel = nil, nil
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// followLeadership turns raft's news into leadership. A new leader's ledger may lack
// entries of the leader before: it leads, for its callers, when it has them.
func (n *Node) followLeadership(ctx context.Context) {
	defer n.leadership.set(false)
	for {
		select {
		case <-ctx.Done():
			return
		case leads := <-n.raft.Leadership:
			if !leads {
				n.leadership.set(false)
				continue
			}
			if err := n.raft.Barrier(0).Error(); err != nil {
				// Leadership was lost again: raft says so next.
				n.log.Debug("leadership ended before the ledger had caught up", "error", err)
				continue
			}
			n.leadership.set(true)
		}
	}
}

// Leader says whether this node leads and has caught up.
func (n *Node) Leader() bool {
	ctx, _ := n.leadership.get()
	return ctx != nil
}

// WaitReady waits until this node's ledger has all that the cluster agreed on
// before the node started. A node knows that when it first leads.
func (n *Node) WaitReady(ctx context.Context) error {
	select {
	case <-n.leadership.ready:
		return nil
	default:
	}
	select {
	case <-n.leadership.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-n.running.Done():
		return ErrClosed
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
