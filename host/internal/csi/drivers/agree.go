package drivers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/pannier/pannier/sdk/storage"
)

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
