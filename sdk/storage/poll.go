package storage

import (
	"context"
	"reflect"
	"time"
)

// Poll is a Storage's Fingerprint for a driver that can only be asked: it calls look at once and then every
// opts.Interval (0: 30 s), and reports the first answer and each that differs from the one before, until ctx ends.
func Poll(ctx context.Context, opts FingerprintOptions, report func(Fingerprint) error,
	look func(context.Context) Fingerprint,
) error {
	if opts.Interval <= 0 {
		opts.Interval = defaultInterval
	}
	tick := time.NewTicker(opts.Interval)
	defer tick.Stop()
	var last *Fingerprint
	for {
		if now := look(ctx); last == nil || !reflect.DeepEqual(now, *last) {
			if err := report(now); err != nil {
				return err
			}
			last = &now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // both may have happened
			return ctx.Err()
		}
	}
}

// defaultInterval is how often a driver is looked at when the host does not say.
const defaultInterval = 30 * time.Second
