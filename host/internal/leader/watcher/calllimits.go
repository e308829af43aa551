package watcher

import (
	"context"
	"sync"
)

// callLimits bounds the calls to each node.
type callLimits struct {
	mu sync.Mutex
	of map[string]*callLimit
}

type callLimit struct {
	slots chan struct{}
	users int // that have a slot or wait for one
}

// begin waits until a call to a node may begin; end is called after it. The error is that of ctx.
func (l *callLimits) begin(ctx context.Context, node string) (end func(), err error) {
	l.mu.Lock()
	one := l.of[node]
	if one == nil {
		one = &callLimit{slots: make(chan struct{}, callsPerDependency)}
		if l.of == nil {
			l.of = map[string]*callLimit{}
		}
		l.of[node] = one
	}
	one.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.of, node)
		}
	}
	select {
	case one.slots <- struct{}{}:
		return func() { <-one.slots; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
