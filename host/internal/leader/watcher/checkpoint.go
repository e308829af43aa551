package watcher

import (
	"context"
	"sync"

	"github.com/pannier/pannier/cluster/command"
)

// checkpoints brings the marks of many releases into the ledger: those that come while a
// command is under way are the next command together. After the end of a node with a
// thousand claims that is some dozens of commands in place of two thousand.
type checkpoints struct {
	apply func(ctx context.Context, by string, items ...command.Advance) (command.AdvanceClaimsResult, error)

	mu      sync.Mutex
	waiting []*mark
	busy    bool
}

// mark is one claim's, and whether it is in the ledger.
type mark struct {
	item command.Advance
	done chan struct{}
	err  error
}

// put brings one claim's mark into the ledger. The context is the leadership's, so that
// whoever puts the marks of others does not give up before they do.
func (c *checkpoints) put(ctx context.Context, item command.Advance) error {
	m := &mark{item: item, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, m)
	lead := !c.busy
	c.busy = true
	c.mu.Unlock()
	if lead {
		c.flush(ctx)
	}
	<-m.done
	return m.err
}

// flush brings all that waits into the ledger.
func (c *checkpoints) flush(ctx context.Context) {
	for {
		c.mu.Lock()
		n := min(len(c.waiting), command.MaxItems)
		batch := c.waiting[:n]
		c.waiting = c.waiting[n:]
		c.busy = n > 0
		c.mu.Unlock()
		if n == 0 {
			return
		}
		c.write(ctx, batch)
	}
}

// write puts marks into one command. One that is refused, refuses all: each then is a
// command of its own.
func (c *checkpoints) write(ctx context.Context, batch []*mark) {
	items := make([]command.Advance, len(batch))
	for i, m := range batch {
		items[i] = m.item
	}
	_, err := c.apply(ctx, "", items...)
	for _, m := range batch {
		m.err = err
		if err != nil && len(batch) > 1 {
			_, m.err = c.apply(ctx, "", m.item)
		}
		close(m.done)
	}
}
