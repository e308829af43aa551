package tokens

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// maxCalls is how many calls for derivations of one consul block are made at the same time. Further derivations wait
// for the end of one of them, and share the next one.
const maxCalls = 4

// maxBatch is how many derivations share a call at most. A call ends with the slowest of them, so this is less than
// identity.MaxBatch.
const maxBatch = 16

// derivations asks the identity plugin of one consul block for tokens. Its goroutines are those of calls: one ends
// when its call does, or when nobody waits for it any more.
type derivations struct {
	consul service.Consul
	// plugin is Config.Identity for the consul block.
	plugin func(ctx context.Context, fn func(ctx context.Context, c identity.Client) error) error

	mu      sync.Mutex
	calls   int // in flight
	waiting []*derivation
}

// derivation is a derivation that waits for others.
type derivation struct {
	ctx  context.Context // its caller's
	req  identity.DeriveRequest
	got  identity.Derived // valid once done is closed
	done chan struct{}
}

// derive is Identity.Derive. It returns when ctx ends, whoever else waits for the same call; the request may still be
// on its way then.
func (q *derivations) derive(ctx context.Context, req identity.DeriveRequest) (identity.Token, string, error) {
	q.mu.Lock()
	if q.calls < maxCalls {
		q.calls++
		q.mu.Unlock()
		defer q.next() //nolint:contextcheck // for other callers, with their contexts
		got := q.one(ctx, req)
		return got.Token, got.Secret, got.Err
	}
	d := &derivation{ctx: ctx, req: req, done: make(chan struct{})}
	q.waiting = append(q.waiting, d)
	q.mu.Unlock()
	select {
	case <-d.done:
		return d.got.Token, d.got.Secret, d.got.Err
	case <-ctx.Done():
		return identity.Token{}, "", coded(status.FromContextError(ctx.Err()).Code(), ctx.Err())
	}
}

// one makes the call of a single derivation.
func (q *derivations) one(ctx context.Context, req identity.DeriveRequest) (got identity.Derived) {
	got.Err = q.plugin(ctx, func(ctx context.Context, c identity.Client) (err error) {
		got.Token, got.Secret, err = c.Derive(ctx, q.consul, req)
		return err
	})
	return got
}

// next makes the next call for what waits, when one has ended.
func (q *derivations) next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*derivation
	for len(q.waiting) > 0 && len(batch) < maxBatch {
		if d := q.waiting[0]; d.ctx.Err() == nil {
			batch = append(batch, d)
		}
		q.waiting[0], q.waiting = nil, q.waiting[1:]
	}
	if len(batch) == 0 {
		q.calls--
		return
	}
	go func() {
		defer q.next()
		q.together(batch)
	}()
}

// together makes one call for several derivations.
func (q *derivations) together(batch []*derivation) {
	if len(batch) == 1 {
		batch[0].answer(q.one(batch[0].ctx, batch[0].req))
		return
	}
	ctx, cancel := callOf(batch)
	defer cancel()
	left := batch
	err := q.plugin(ctx, func(ctx context.Context, c identity.Client) error {
		for _, d := range left {
			d.got.Err = nil
		}
		results, err := c.DeriveBatch(ctx, q.consul, requests(left))
		if status.Code(err) == codes.Unimplemented {
			results, err = q.apart(c, left), nil
		}
		if err != nil {
			return err
		}
		var failed []*derivation
		var errs []error
		for n, got := range results {
			if got.Err == nil {
				left[n].answer(got)
				continue
			}
			left[n].got = got
			failed, errs = append(failed, left[n]), append(errs, got.Err)
		}
		left = failed
		return errors.Join(errs...) // q.plugin may repeat those
	})
	for _, d := range left {
		if d.got.Err == nil {
			d.got.Err = err
		}
		d.answer(d.got)
	}
}

// apart makes a call for each derivation, because the plugin cannot make one for all of them.
func (q *derivations) apart(c identity.Client, batch []*derivation) []identity.Derived {
	results := make([]identity.Derived, len(batch))
	var all sync.WaitGroup
	for n, d := range batch {
		all.Go(func() {
			got := &results[n]
			got.Token, got.Secret, got.Err = c.Derive(d.ctx, q.consul, d.req)
		})
	}
	all.Wait()
	return results
}

// callOf returns the context of a call for several derivations. It ends with the last of their callers. Its values are
// those of the first one, so that the call is in the trace of that.
func callOf(batch []*derivation) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(batch[0].ctx)
	var latest time.Time
	for _, d := range batch {
		ends, bounded := d.ctx.Deadline()
		if !bounded {
			latest = time.Time{}
			break
		}
		if ends.After(latest) {
			latest = ends
		}
	}
	var cancel context.CancelFunc
	if latest.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, latest)
	}
	var callers atomic.Int32
	callers.Store(int32(len(batch)))
	stops := []func() bool{}
	for _, d := range batch {
		stops = append(stops, context.AfterFunc(d.ctx, func() {
			if callers.Add(-1) == 0 {
				cancel()
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

func requests(batch []*derivation) []identity.DeriveRequest {
	reqs := make([]identity.DeriveRequest, len(batch))
	for n, d := range batch {
		reqs[n] = d.req
	}
	return reqs
}

func (d *derivation) answer(got identity.Derived) {
	d.got = got
	close(d.done)
}
