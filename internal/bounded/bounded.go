// Package bounded makes system calls that may never return, such as those to a file system whose server hangs. The
// kernel does not let such a call be cancelled: it keeps its thread, and a Go program ends at 10,000 threads. So of
// each thing that may hang at most one call is under way.
package bounded

import (
	"errors"
	"sync"
	"time"
)

// Patience is how long a file system may take to answer.
const Patience = 2 * time.Second

// ErrNoAnswer means that a call has not returned in time, or that an earlier one of the same thing has not yet.
var ErrNoAnswer = errors.New("it does not answer")

// Calls makes calls by the name of what may hang. The zero value is ready.
type Calls struct {
	mu       sync.Mutex
	underWay map[string]*call
}

type call struct {
	overdue time.Time
	ended   chan struct{}
	err     error
}

// Do makes a call and returns its error, or ErrNoAnswer if it takes longer than within. It waits for an earlier call
// with the key, but not longer than that may take: a caller never waits twice for what hangs. What the call writes
// must not be read after ErrNoAnswer.
func (c *Calls) Do(key string, within time.Duration, do func() error) error {
	for {
		now, begun := c.begin(key, within, do)
		timeout := time.NewTimer(time.Until(now.overdue))
		select {
		case <-now.ended:
			timeout.Stop()
		case <-timeout.C:
			return ErrNoAnswer
		}
		if begun {
			return now.err
		}
	}
}

// begin returns the call that is under way, or begins one.
func (c *Calls) begin(key string, within time.Duration, do func() error) (now *call, begun bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.underWay[key]; now != nil {
		return now, false
	}
	if c.underWay == nil {
		c.underWay = map[string]*call{}
	}
	now = &call{overdue: time.Now().Add(within), ended: make(chan struct{})}
	c.underWay[key] = now
	go func() {
		now.err = do()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.underWay, key)
		close(now.ended)
	}()
	return now, true
}
