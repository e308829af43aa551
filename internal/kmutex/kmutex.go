// Package kmutex is a lock per key, such as one per volume. Waiting for a lock ends with the caller's context.
package kmutex

import (
	"context"
	"sync"
)

// Locks lets one caller at a time hold each key's lock. The zero value is ready. A key that nobody holds or waits for
// uses no memory.
type Locks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

type lock struct {
	token chan struct{} // holds one token while it is free
	users int           // holder and waiters; guarded by Locks.mu
}

// Lock waits for the key's lock. If ctx ends first the error is its cause; otherwise unlock must be called once.
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

// TryLock is Lock for a caller that does not wait; unlock is nil if another one holds the key's lock.
func (l *Locks[K]) TryLock(key K) (unlock func()) {
	k := l.join(key)
	select {
	case <-k.token:
		return func() { k.token <- struct{}{}; l.leave(key, k) }
	default:
		l.leave(key, k)
		return nil
	}
}

// Users counts the holder of the key's lock and those who wait for it.
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
