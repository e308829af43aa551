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

// streamState is one message of the fingerprint stream: a report, or whether a storage plugin is
// there.
type streamState struct {
	report *storage.Fingerprint
	away   error // why there is no plugin now
}

// watcher follows a driver through a storage plugin.
type watcher struct{ *instance }

// watch keeps the driver's state up to date until ctx ends. When a storage plugin crashes or is swapped, the
// last known state stays valid for a while. After that the driver counts as unhealthy.
func (i watcher) watch(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	states := make(chan streamState)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.stream(ctx, states)
	}()
	defer func() { cancel(); <-ended }()

	var unknown <-chan time.Time // fires when the plugin has been away for too long
	var why error
	for {
		select {
		case h := <-states:
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

// stream holds a fingerprint stream of the driver until ctx ends, with one storage plugin process
// after the other.
func (i watcher) stream(ctx context.Context, states chan<- streamState) {
	send := func(h streamState) error {
		select {
		case states <- h:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	retry := newBackoff(i.r.timing.retryMin, i.r.timing.retryMax)
	why := fmt.Errorf("waiting for a storage plugin")
	for send(streamState{away: why}) == nil {
		began := time.Now()
		why = i.fingerprint(ctx, send)
		if time.Since(began) > i.r.timing.retryMax {
			retry.Reset()
		}
		if send(streamState{away: why}) != nil || !sleep(ctx, retry.NextBackOff()) {
			return
		}
	}
}

// fingerprint runs one stream on one acquired plugin client. It always returns an error.
func (i watcher) fingerprint(ctx context.Context, send func(streamState) error) error {
	client, release, err := i.r.cfg.Storage(ctx, i.spec.Plugin)
	if err != nil {
		return fmt.Errorf("no storage plugin: %w", err)
	}
	defer release()
	if err := send(streamState{}); err != nil {
		return err
	}
	ref := storage.Driver{ID: i.spec.ID, Endpoint: i.spec.Endpoint}
	opts := storage.FingerprintOptions{Interval: i.r.timing.fingerprintEvery, ProbeTimeout: i.spec.HealthTimeout}
	err = client.Fingerprint(ctx, ref, opts, func(fp storage.Fingerprint) error {
		return send(streamState{report: &fp})
	})
	if err == nil {
		return fmt.Errorf("the storage plugin ended the fingerprint stream")
	}
	return fmt.Errorf("the storage plugin's fingerprint stream broke: %w", err)
}

func newBackoff(first, longest time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: first, MaxInterval: longest, Multiplier: 2,
		RandomizationFactor: 0.3,
	}
}

// sleep waits for d, and reports whether ctx is still alive.
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

// errReported ends a fingerprint stream after its first report.
var errReported = errors.New("reported")

// CheckCompatible checks that another process of the storage plugin sees every healthy driver as the
// current one does. The error names the driver and the difference: if an ability is gone, calls in
// flight would fail halfway. Additional abilities are no error. Only the drivers for whose ids serves is true are
// reached through the plugin.
func (r *Registry) CheckCompatible(ctx context.Context, client storage.Client, serves func(id string) bool) error {
	for _, d := range r.each() {
		if !d.Healthy || !serves(d.ID) {
			continue // its fingerprint is not current
		}
		seen := d
		err := client.Fingerprint(ctx, d.Ref(), storage.FingerprintOptions{ProbeTimeout: d.HealthTimeout},
			func(fp storage.Fingerprint) error {
				seen.conclude(fp)
				return errReported
			})
		if !errors.Is(err, errReported) {
			return fmt.Errorf("driver %q: %w", d.key(), err)
		}
		if now := r.instance(d.key()); now == nil || !now.snapshot().Healthy {
			continue // it became unhealthy meanwhile
		}
		if !seen.Healthy {
			return fmt.Errorf("driver %q is healthy, and this process finds it unhealthy: %s", d.key(), seen.Message)
		}
		if lost := differences(d.Fingerprint, seen.Fingerprint); len(lost) > 0 {
			return fmt.Errorf("driver %q: this process sees another fingerprint: %s", d.key(), strings.Join(lost, ", "))
		}
	}
	return nil
}

// differences lists what must not differ between two fingerprints of a driver: its provider, and
// every ability it had. Version and message may differ: a plugin that is its own driver reports the
// plugin's version.
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

// lost lists the capability fields of a service that changed, except abilities that were added.
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
