package driver

import (
	"context"
	"sync"
)

// keyLock is a mutex for each key. The zero value is ready to use.
type keyLock struct {
	mu   sync.Mutex
	held map[string]*queue
}

// queue is one key's lock: a token in a channel, and how many hold or want it.
type queue struct {
	token chan struct{}
	users int
}

// lock waits until no one else holds key. When ctx ends first it returns ctx's
// error and the caller holds nothing. unlock is called once.
func (l *keyLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	q := l.join(key)
	select {
	case q.token <- struct{}{}:
		return func() {
			<-q.token
			l.leave(key, q)
		}, nil
	case <-ctx.Done():
		l.leave(key, q)
		return nil, ctx.Err()
	}
}

func (l *keyLock) join(key string) *queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.held[key]
	if q == nil {
		if l.held == nil {
			l.held = map[string]*queue{}
		}
		q = &queue{token: make(chan struct{}, 1)}
		l.held[key] = q
	}
	q.users++
	return q
}

// leave forgets a key that no one holds or wants, so that the map does not grow
// with every volume ever seen.
func (l *keyLock) leave(key string, q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.users--; q.users == 0 {
		delete(l.held, key)
	}
}
