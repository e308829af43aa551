package controllers

import (
	"context"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

const (
	// detachCalls is how many calls to detach volumes of a driver are made at the same time before further volumes wait
	// for the end of one, and share the next.
	detachCalls = 2
	// detachBatch is the most volumes that share a call.
	detachBatch = 16
	// defaultPatience is how long a volume waits for a call that others share. After that it gets one of its own: one
	// volume that hangs must not hold up the others.
	defaultPatience = 2 * time.Second
	// aloneFor is how long no calls are shared after one that took too long or failed as a whole: the driver is slow,
	// or the node or its plugin is older than these calls.
	aloneFor = time.Minute
)

// detaches lets detaches share calls. A shared call only confirms: what it has not detached for certain gets a call of
// its own, which knows other controllers and has the error.
type detaches struct {
	reach    reach
	patience time.Duration

	mu sync.Mutex
	of map[detachOf]*detachQueue
}

// detachOf are the detaches that may share a call. Which nodes may see a volume depends on its namespace.
type detachOf struct{ driver, namespace string }

type detachQueue struct {
	calls   int // in flight
	waiting []*waitingDetach
	alone   time.Time // until when no calls are shared
}

// waitingDetach is a volume that waits for a shared call.
type waitingDetach struct {
	ctx       context.Context // its caller's
	req       storage.DetachRequest
	l         *attachmentLock // held until the call has ended
	left      bool            // its caller has left before a call began
	confirmed bool            // valid once done is closed
	done      chan struct{}
}

// share returns whether a shared call has detached the volume. If not, the caller makes a call of its own, and then
// calls end.
func (d *detaches) share(ctx context.Context, l *attachmentLock, v claim.Volume, req storage.DetachRequest,
) (confirmed bool, end func()) {
	key := detachOf{v.PluginID, v.Namespace}
	d.mu.Lock()
	if d.of == nil {
		d.of = map[detachOf]*detachQueue{}
	}
	q := d.of[key]
	if q == nil {
		q = &detachQueue{}
		d.of[key] = q
	}
	if q.calls < detachCalls || time.Now().Before(q.alone) {
		q.calls++
		d.mu.Unlock()
		return false, func() { d.next(key, q) }
	}
	w := &waitingDetach{ctx: ctx, req: req, l: l, done: make(chan struct{})}
	q.waiting = append(q.waiting, w)
	l.calls.Add(1)
	d.mu.Unlock()
	late := time.NewTimer(d.patience)
	defer late.Stop()
	select {
	case <-w.done:
		return w.confirmed, func() {}
	case <-late.C:
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w.left = true
	if ctx.Err() == nil {
		q.alone = time.Now().Add(aloneFor)
	}
	return false, func() {}
}

// next makes the next call for what waits, when one has ended.
func (d *detaches) next(key detachOf, q *detachQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var batch []*waitingDetach
	for len(q.waiting) > 0 && len(batch) < detachBatch {
		w := q.waiting[0]
		q.waiting[0], q.waiting = nil, q.waiting[1:]
		if w.left || w.ctx.Err() != nil {
			w.l.calls.Done()
		} else {
			batch = append(batch, w)
		}
	}
	if len(batch) > 0 {
		go func() {
			defer d.next(key, q)
			d.together(key, q, batch)
		}()
	} else if q.calls--; q.calls == 0 && time.Now().After(q.alone) {
		delete(d.of, key)
	}
}

// together makes one call for several volumes. It begins only within the context of the first of them, the leader's
// term. Once it has begun it is given answerWithin, like a call of its own that nobody waits for any more.
func (d *detaches) together(key detachOf, q *detachQueue, batch []*waitingDetach) {
	reqs := make([]storage.DetachRequest, len(batch))
	for n, w := range batch {
		reqs[n] = w.req
	}
	need := attaching
	need.namespace = key.namespace
	var errs []error
	err := d.reach.call(batch[0].ctx, key.driver, need, 0,
		func(ctx context.Context, s storage.Client, on drivers.Driver) (err error) {
			ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
			defer cancel()
			defer time.AfterFunc(d.patience+answerWithin, cancel).Stop()
			errs, err = s.DetachBatch(ctx, on.Ref(), reqs)
			return err
		})
	if err != nil {
		d.mu.Lock()
		q.alone = time.Now().Add(aloneFor)
		d.mu.Unlock()
	}
	for n, w := range batch {
		w.confirmed = err == nil && n < len(errs) && errs[n] == nil
		close(w.done)
		w.l.calls.Done()
	}
}
