package drivers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pannier/pannier/sdk/storage"
)

// heard is one thing that the fingerprint stream tells: a report, or whether
// the storage plugin is there to give one.
type heard struct {
	report *storage.Fingerprint
	away   error // the plugin is away, or about to be asked for
}

// watch keeps the driver's state up to date until ctx ends. A storage plugin
// that crashes or is swapped says nothing about the driver: what was known stands
// for a while, and only then the driver counts as unhealthy.
func (i *instance) watch(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan heard)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.stream(ctx, told)
	}()
	defer func() { cancel(); <-ended }()

	var unknown <-chan time.Time // fires when the plugin has been away for too long
	var why error
	for {
		select {
		case h := <-told:
			switch {
			case h.report != nil:
				i.report(*h.report)
				unknown = nil
			case h.away == nil:
				unknown = nil
			default:
				why = h.away
				if unknown == nil {
					unknown = time.After(i.r.timing.unknownAfter)
				}
			}
		case <-unknown:
			i.unhealthy(fmt.Sprintf("cannot be checked: %v", why))
			unknown = time.After(i.r.timing.unknownAfter) // the reason may change
		case <-ctx.Done():
			return
		}
	}
}

// stream holds a fingerprint stream of the driver, over one storage plugin
// process after the other, until ctx ends.
func (i *instance) stream(ctx context.Context, told chan<- heard) {
	tell := func(h heard) error {
		select {
		case told <- h:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	retry := newBackoff(i.r.timing.retryMin, i.r.timing.retryMax)
	why := fmt.Errorf("waiting for a storage plugin")
	for tell(heard{away: why}) == nil {
		began := time.Now()
		why = i.fingerprint(ctx, tell)
		if time.Since(began) > i.r.timing.retryMax {
			retry.Reset()
		}
		if tell(heard{away: why}) != nil || !sleep(ctx, retry.NextBackOff()) {
			return
		}
	}
}

// fingerprint is one stream over one lease of the storage plugin. It always ends
// with an error.
func (i *instance) fingerprint(ctx context.Context, tell func(heard) error) error {
	client, release, err := i.r.cfg.Storage(ctx)
	if err != nil {
		return fmt.Errorf("no storage plugin: %w", err)
	}
	defer release()
	if err := tell(heard{}); err != nil {
		return err
	}
	ref := storage.Driver{ID: i.spec.ID, Endpoint: i.spec.Endpoint}
	opts := storage.FingerprintOptions{Interval: i.r.timing.fingerprintEvery, ProbeTimeout: i.spec.HealthTimeout}
	err = client.Fingerprint(ctx, ref, opts, func(fp storage.Fingerprint) error {
		return tell(heard{report: &fp})
	})
	if err == nil {
		return fmt.Errorf("the storage plugin ended the fingerprint stream")
	}
	return fmt.Errorf("the storage plugin's fingerprint stream broke: %w", err)
}

func newBackoff(first, longest time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: first, MaxInterval: longest, Multiplier: 2, RandomizationFactor: 0.3}
}

// sleep waits for d and says whether ctx still stands.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// errHeard ends a fingerprint stream after its first report.
var errHeard = errors.New("heard")

// Agrees asks a process of the storage plugin that is to take over what it sees of
// each driver that is healthy now. The error names the driver and what differs: where an
// ability is gone, calls that are under way would go wrong in the middle. One that comes
// in addition is welcome.
func (r *Registry) Agrees(ctx context.Context, client storage.Client) error {
	for _, d := range r.List() {
		if !d.Healthy {
			continue // what an unhealthy driver says proves nothing
		}
		seen := d
		err := client.Fingerprint(ctx, d.Ref(), storage.FingerprintOptions{ProbeTimeout: d.HealthTimeout}, func(fp storage.Fingerprint) error {
			seen.conclude(fp)
			return errHeard
		})
		if !errors.Is(err, errHeard) {
			return fmt.Errorf("driver %q: %w", d.ID, err)
		}
		if now, err := r.Get(d.ID); err != nil || !now.Healthy {
			continue // it went away while it was asked
		}
		if !seen.Healthy {
			return fmt.Errorf("driver %q is healthy, and this process finds it unhealthy: %s", d.ID, seen.Message)
		}
		if lost := differences(d.Fingerprint, seen.Fingerprint); len(lost) > 0 {
			return fmt.Errorf("driver %q: this process sees another fingerprint: %s", d.ID, strings.Join(lost, ", "))
		}
	}
	return nil
}

// differences are what of a fingerprint may not be another at a swap: who the driver is,
// and each ability that it has. Version and message are words: where a plugin is the
// driver itself, the version is the plugin's.
func differences(was, is storage.Fingerprint) (out []string) {
	if is.Provider != was.Provider {
		out = append(out, fmt.Sprintf("provider %q, not %q", is.Provider, was.Provider))
	}
	if was.Controller != nil {
		out = append(out, lost("controller", was.Controller, is.Controller)...)
	}
	if was.Node != nil {
		out = append(out, lost("node", was.Node, is.Node)...)
	}
	return out
}

// lost are the fields of a service's capabilities that are not as they were, but for
// abilities that came in addition.
func lost[T any](service string, was, is *T) (out []string) {
	if is == nil {
		return []string{"no " + service + " service"}
	}
	before, after := reflect.ValueOf(*was), reflect.ValueOf(*is)
	for n := range before.NumField() {
		name, from, to := before.Type().Field(n).Name, before.Field(n).Interface(), after.Field(n).Interface()
		if from == false || reflect.DeepEqual(from, to) {
			continue
		}
		out = append(out, fmt.Sprintf("%s %s %v, not %v", service, name, to, from))
	}
	return out
}
