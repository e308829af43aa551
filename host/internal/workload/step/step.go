// Package step is what the engine of a workload and its steps have in common: what a step knows
// of its workload, how its progress is recorded, and how a failed call is retried.
package step

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/refusal"
)

// Progress is how far a step has come. A step without progress has nothing to undo.
type Progress string

// How far a step has come.
const (
	Intended Progress = "intended" // Do may have been called
	Done     Progress = "done"     // Do has succeeded
)

// NoEffect marks the error of a Do that failed before it had any effect: there is nothing to undo.
func NoEffect(err error) error { return noEffectError{err} }

// HadNoEffect reports whether an error was marked by NoEffect.
func HadNoEffect(err error) bool { return errors.As(err, new(noEffectError)) }

type noEffectError struct{ error }

func (e noEffectError) Unwrap() error { return e.error }

// Refused reports that the ledger, or the leader for it, decided against a command, so it had no effect. Any
// other error leaves that open.
func Refused(err error) bool {
	return errors.As(err, new(*claim.Refusal)) || errors.Is(err, claim.ErrInvalid) ||
		errors.Is(err, claim.ErrVolumeNotFound) || errors.Is(err, claim.ErrConflict) ||
		errors.Is(err, claim.ErrIneligible) || errors.Is(err, claim.ErrCycle) || errors.Is(err, claim.ErrUnbound) ||
		status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unauthenticated
}

// Backoff is the bounds of the pause between two attempts, which grows from Min to Max.
type Backoff struct{ Min, Max time.Duration }

// Start begins a series of attempts.
func (b Backoff) Start() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: b.Min, MaxInterval: b.Max, Multiplier: 2, RandomizationFactor: 0.5}
}

type notesKey struct{}

// WithNotes returns a context for Retry, which calls note with each error after which it tries again, and with nil when
// a later try has succeeded.
func WithNotes(ctx context.Context, note func(err error)) context.Context {
	return context.WithValue(ctx, notesKey{}, note)
}

// Retry calls fn until it succeeds, its error is not retryable, or bound has passed. The error
// is the last one of fn that is not just the end of the time, or the cause of the end of ctx.
func (b Backoff) Retry(ctx context.Context, bound time.Duration, retryable func(err error) bool,
	fn func(ctx context.Context) error,
) error {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	note, noted := ctx.Value(notesKey{}).(func(err error))
	pause := b.Start()
	var last error
	for {
		err := fn(bounded)
		if err == nil {
			if noted && last != nil {
				note(nil)
			}
			return nil
		}
		if last == nil || bounded.Err() == nil {
			last = err
		}
		if bounded.Err() == nil {
			if !retryable(err) {
				return err
			}
			if noted {
				note(err)
			}
			if Sleep(bounded, pause.NextBackOff()) == nil {
				continue
			}
		}
		if ctx.Err() == nil {
			return fmt.Errorf("given up after %s: %w", bound, last)
		}
		if cause := context.Cause(ctx); errors.Is(cause, ErrTooLong) {
			return fmt.Errorf("%w: %w", cause, last)
		}
		return context.Cause(ctx)
	}
}

// ErrTooLong is the cause of the end of a context that bounds several retried calls together.
var ErrTooLong = errors.New("it took too long")

// Retryable reports that a call to a plugin, or to what is behind it, may succeed when it is
// repeated (sdk/identity): the other side is unreachable, slow or overloaded.
func Retryable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return true
	default:
		return errors.Is(err, context.DeadlineExceeded)
	}
}

// Definite reports that a call to a plugin was refused for certain: nothing was done, and repeating it changes nothing.
func Definite(err error) bool {
	code := status.Code(err)
	if c, ok := errcode.Of(err); ok {
		code = codes.Code(c)
	}
	return refusal.Is(code)
}

// Sleep waits for d, or until ctx ends, and returns the cause of that.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
