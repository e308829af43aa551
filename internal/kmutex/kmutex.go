// Package kmutex is a lock per key, such as one per volume. Waiting for a lock ends with the caller's context.
package kmutex

import (
	"context"
	"sync"
)

// Locks lets one caller at a time, or as many as Slots, hold each key's lock. The zero value is ready. A key that
// nobody holds or waits for uses no memory.
type Locks[K comparable] struct {
	// Slots is how many callers may hold a key's lock at a time; 0: one.
	Slots int

	mu    sync.Mutex
	locks map[K]*lock
}

type lock struct {
	held  chan struct{} // has what each holder put in
	users int           // holders and waiters; guarded by Locks.mu
}

// Lock waits for the key's lock. If ctx ends first the error is its cause; otherwise unlock must be called once.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	k := l.join(key)
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held; l.leave(key, k) }, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, context.Cause(ctx)
	}
}

// Users counts the holders of the key's lock and those who wait for it.
func (l *Locks[K]) Users(key K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.locks[key]; k != nil {
		return k.users
	}
	return 0
}

// Len counts the keys whose locks are held or waited for.
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
		k = &lock{held: make(chan struct{}, max(l.Slots, 1))}
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
