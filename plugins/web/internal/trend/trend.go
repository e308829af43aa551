// Package trend keeps the last day of a few numbers: a bounded ring of samples in the plugin's key-value state. It is
// for people to look at; nothing is decided from it, and it may be lost.
package trend

import (
	"context"
	"encoding/json"
	"time"
)

const (
	// Every is the time between two samples.
	Every = 5 * time.Minute
	// Span is what the ring covers.
	Span = 24 * time.Hour
	// again is the pause before the next try where there was no sample.
	again = 10 * time.Second
	// samples is how many the ring has.
	samples = int(Span / Every)
	// key of the ring in the state. Its value has at most 288 samples of about 60 bytes, of the 32 KiB that a value may
	// have.
	key = "trend"
)

// Sample is what was at one time.
type Sample struct {
	// At is in seconds since 1970.
	At int64 `json:"t"`
	// Used and Size are of the data directory's file system, and Ledger of the ledger, in bytes.
	Used   uint64 `json:"u"`
	Size   uint64 `json:"s"`
	Ledger int64  `json:"l,omitempty"`
	// Stalled is for how many seconds the oldest release has waited.
	Stalled int64 `json:"w,omitempty"`
}

// Store is the part of sdk.State that a Ring uses.
type Store interface {
	Get(ctx context.Context, key string) (value []byte, found bool, err error)
	CompareAndSwap(ctx context.Context, key string, expected, value []byte) (swapped bool, err error)
}

// Ring is the samples of the last day.
type Ring struct{ Store Store }

// Read returns the samples, oldest first.
func (r Ring) Read(ctx context.Context) ([]Sample, error) {
	value, found, err := r.Store.Get(ctx, key)
	if err != nil || !found {
		return nil, err
	}
	return decode(value), nil
}

// decode ignores what it cannot read: the ring starts empty then.
func decode(value []byte) (all []Sample) {
	if json.Unmarshal(value, &all) != nil {
		return nil
	}
	return all
}

// Add appends a sample, unless there is one that is younger than Every: while the plugin is swapped, two processes add.
func (r Ring) Add(ctx context.Context, s Sample) error {
	before, _, err := r.Store.Get(ctx, key)
	if err != nil {
		return err
	}
	all := decode(before)
	if n := len(all); n > 0 && s.At-all[n-1].At < int64(Every.Seconds())-1 && s.At >= all[n-1].At {
		return nil
	}
	all = append(all, s)
	for len(all) > samples || s.At-all[0].At > int64(Span.Seconds()) {
		all = all[1:]
	}
	after, err := json.Marshal(all)
	if err != nil {
		return err
	}
	_, err = r.Store.CompareAndSwap(ctx, key, before, after) // if not, the other process has added one
	return err
}

// Keep adds a sample now and every Every, until ctx ends. take returns false where there is none, and is asked again
// soon.
func (r Ring) Keep(ctx context.Context, take func(ctx context.Context) (Sample, bool)) {
	for {
		pause := again
		if s, ok := take(ctx); ok {
			_ = r.Add(ctx, s) // the next one comes
			pause = Every
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
