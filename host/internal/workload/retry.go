package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recoverable says that a call to Consul is worth another try (sdk/identity): it, or
// the plugin before it, is away, slow, or has too much to do.
func recoverable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return true
	default:
		return errors.Is(err, context.DeadlineExceeded)
	}
}

func notFound(err error) bool { return status.Code(err) == codes.NotFound }

// retry calls fn until it works, or its error is not worth another try, or bound has
// passed; the pause between two calls grows. The error is fn's last one that is not
// just the end of the time, or why ctx has ended.
func (m *Manager) retry(ctx context.Context, bound time.Duration, worth func(err error) bool, fn func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	pause := m.pause()
	var last error
	for {
		err := fn(bounded)
		if err == nil {
			return nil
		}
		if last == nil || bounded.Err() == nil {
			last = err
		}
		if bounded.Err() == nil {
			if !worth(err) {
				return err
			}
			select {
			case <-bounded.Done():
			case <-time.After(pause.NextBackOff()):
				continue
			}
		}
		if ctx.Err() != nil {
			return whyEnded(ctx, last)
		}
		return fmt.Errorf("given up after %s: %w", bound, last)
	}
}

// whyEnded is the cause of a context's end, with what failed until then where that is
// what used the time up.
func whyEnded(ctx context.Context, last error) error {
	if late := context.Cause(ctx); errors.Is(late, errTooLong) {
		return fmt.Errorf("%w: %w", late, last)
	}
	return context.Cause(ctx)
}

// errTooLong is the cause of the end of a derivation that took too long.
var errTooLong = errors.New("it took too long")

// pause grows between two attempts, with jitter.
func (m *Manager) pause() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: m.limits.retryMin, MaxInterval: m.limits.retryMax, Multiplier: 2, RandomizationFactor: 0.5,
	}
}
