package services

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// parallel bounds the requests to an agent that one call has in flight.
const parallel = 16

// work is a number of requests to an agent side by side. One that Consul refuses does
// not keep the others from being made; one that fails since Consul is in trouble does.
type work struct {
	group *errgroup.Group
	ctx   context.Context // of the requests

	mu      sync.Mutex
	refused error // the first
}

func newWork(ctx context.Context) *work {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	return &work{group: group, ctx: ctx}
}

func (w *work) do(request func(context.Context) error) {
	w.group.Go(func() error {
		err := request(w.ctx)
		switch status.Code(err) {
		case codes.OK, codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled:
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused == nil {
			w.refused = err
		}
		return nil
	})
}

// wait returns once all have ended.
func (w *work) wait() error {
	if err := w.group.Wait(); err != nil {
		return err
	}
	return w.refused
}
