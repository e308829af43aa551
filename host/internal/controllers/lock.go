package controllers

import (
	"context"
	"sync"
)

// keyed lets one caller at a time in for each key. Waiting ends with the
// caller's context. The zero value is ready.
type keyed[K comparable] struct {
	mu   sync.Mutex
	held map[K]*entry
}

type entry struct {
	token chan struct{} // holds one token while it is free
	users int           // holder and waiters; guarded by keyed.mu
}

func (l *keyed[K]) lock(ctx context.Context, key K) (unlock func(), err error) {
	e := l.join(key)
	select {
	case <-e.token:
		return func() { e.token <- struct{}{}; l.leave(key, e) }, nil
	case <-ctx.Done():
		l.leave(key, e)
		return nil, context.Cause(ctx)
	}
}

func (l *keyed[K]) join(key K) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = map[K]*entry{}
	}
	e := l.held[key]
	if e == nil {
		e = &entry{token: make(chan struct{}, 1)}
		e.token <- struct{}{}
		l.held[key] = e
	}
	e.users++
	return e
}

func (l *keyed[K]) leave(key K, e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.users--; e.users == 0 {
		delete(l.held, key)
	}
}
