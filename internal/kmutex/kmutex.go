// Package kmutex has a lock for each key of a kind, such as each volume. Waiting
// for one ends with the caller's context. It imports the standard library only.
package kmutex

import (
	"context"
	"sync"
)

// Locks lets one caller at a time in for each key. The zero value is ready. A key
// that nobody holds or waits for takes no memory.
type Locks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

type lock struct {
	token chan struct{} // holds one token while it is free
	users int           // holder and waiters; guarded by Locks.mu
}

// Lock waits for the key's lock. The error is the context's cause; unlock is to be
// called once where there is none.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	k := l.join(key)
	select {
	case <-k.token:
		return func() { k.token <- struct{}{}; l.leave(key, k) }, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, context.Cause(ctx)
	}
}

// Users counts who holds the key's lock or waits for it.
func (l *Locks[K]) Users(key K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.locks[key]; k != nil {
		return k.users
	}
	return 0
}

// Len counts the keys that somebody holds or waits for.
func (l *Locks[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.locks)
}

func (l *Locks[K]) join(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locks == nil {
		l.locks = map[K]*lock{}
	}
	k := l.locks[key]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		l.locks[key] = k
	}
	k.users++
	return k
}

func (l *Locks[K]) leave(key K, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.locks, key)
	}
}
