package workload

import (
	"context"
	"fmt"
	"sync"

	"github.com/pannier/pannier/cluster/claim"
)

// volumeLocks lets one workload at a time change what this node does with a
// volume. Waiting ends with the caller's context.
type volumeLocks struct {
	mu   sync.Mutex
	held map[claim.VolumeRef]*volumeLock
}

type volumeLock struct {
	token chan struct{} // holds one token while it is free
	users int           // holder and waiters; guarded by volumeLocks.mu
}

func (l *volumeLocks) lock(ctx context.Context, ref claim.VolumeRef) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[claim.VolumeRef]*volumeLock{}
	}
	v := l.held[ref]
	if v == nil {
		v = &volumeLock{token: make(chan struct{}, 1)}
		v.token <- struct{}{}
		l.held[ref] = v
	}
	v.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if v.users--; v.users == 0 {
			delete(l.held, ref)
		}
	}
	select {
	case <-v.token:
		return func() { v.token <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for another use of volume %q: %w", ref, context.Cause(ctx))
	}
}
