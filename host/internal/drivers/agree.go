package drivers

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/pannier/pannier/sdk/storage"
)

// errHeard ends a fingerprint stream after its first report.
var errHeard = errors.New("heard")

// Agrees asks a process of the storage plugin that is to take over what it sees of
// each driver that is healthy now. The error names the driver and what differs: with
// other abilities, calls that are under way would go wrong in the middle.
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
		// Words, not abilities: where a plugin is the driver itself, the version is the plugin's.
		seen.Fingerprint.Message, seen.Fingerprint.Version = d.Fingerprint.Message, d.Fingerprint.Version
		switch {
		case !seen.Healthy:
			return fmt.Errorf("driver %q is healthy, and this process finds it unhealthy: %s", d.ID, seen.Message)
		case !reflect.DeepEqual(seen.Fingerprint, d.Fingerprint):
			return fmt.Errorf("driver %q: this process sees another fingerprint: %+v, not %+v", d.ID, seen.Fingerprint, d.Fingerprint)
		}
	}
	return nil
}
