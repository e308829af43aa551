package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// closers are what has to be closed, in the reverse order of opening.
type closers []func() error

func (c *closers) add(fn func() error) { *c = append(*c, fn) }

// loop runs fn on a goroutine of its own and adds what ends it and waits for it. fn
// does not end with ctx, but when its turn comes.
func (c *closers) loop(ctx context.Context, fn func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { fn(ctx) })
	c.add(func() error {
		cancel()
		wg.Wait()
		return nil
	})
}

// Close closes everything once, the last opened first.
func (c *closers) Close() error {
	var errs []error
	for _, fn := range slices.Backward(*c) {
		errs = append(errs, fn())
	}
	*c = nil
	return errors.Join(errs...)
}
