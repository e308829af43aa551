package workload

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// callTimeout bounds one call to a driver, its retries included: the plugin's
// own bound of 2 minutes and a margin, so that its better error comes first.
const callTimeout = 2*time.Minute + 15*time.Second

// call makes one call to the driver of v. The error says what was tried, on what.
func (r *run) call(ctx context.Context, verb string, v *volume, fn func(ctx context.Context, c storage.Client, d drivers.Driver) error) error {
	driver, err := r.Drivers.Get(v.Driver)
	if err == nil && !driver.Healthy {
		err = fmt.Errorf("the driver is not healthy: %s (see: pannier driver status %s)", driver.Message, driver.ID)
	}
	if err == nil {
		err = r.lease(ctx, func(ctx context.Context, c storage.Client) error { return fn(ctx, c, driver) })
	}
	if err != nil {
		return fmt.Errorf("%s volume %q for %s on driver %q: %w", verb, v.Ref, r.instance, v.Driver, err)
	}
	return nil
}

// lease runs fn with a storage plugin's client.
func (m *Manager) lease(ctx context.Context, fn func(ctx context.Context, c storage.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, release, err := m.Storage(ctx)
	if err != nil {
		return err
	}
	defer release()
	return fn(ctx, c)
}

// awaitDriver waits until a driver is healthy, for limits.driver at most. One that
// is not known at all is an error at once.
func (m *Manager) awaitDriver(ctx context.Context, id string) (drivers.Driver, error) {
	late := time.NewTimer(m.limits.driver)
	defer late.Stop()
	for {
		changed := m.Drivers.Changed()
		d, err := m.Drivers.Get(id)
		if err != nil {
			return d, err
		}
		if d.Healthy {
			return d, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return d, context.Cause(ctx)
		case <-late.C:
			return d, fmt.Errorf("driver %q has not been healthy for %s: %s (see: pannier driver status %s)", id, m.limits.driver, d.Message, id)
		}
	}
}

// asked is the volume as a driver's call needs it. Secrets are opened for the
// call and kept nowhere.
func (r *run) asked(v *volume) (storage.Volume, error) {
	secrets, err := r.Secrets(v.info)
	if err != nil {
		return storage.Volume{}, fmt.Errorf("open the secrets of volume %q: %w", v.Ref, err)
	}
	s := v.known()
	s.Secrets = secrets
	return s, nil
}

// known is the volume from the journal alone: what an undo needs.
func (v *volumeRecord) known() storage.Volume {
	c := storage.Capability{
		AccessMode:     storage.AccessMode(v.Usage.AccessMode),
		AttachmentMode: storage.AttachmentMode(v.Usage.AttachmentMode),
	}
	if v.Usage.AttachmentMode == claim.FileSystem {
		c.FSType, c.MountFlags, c.VolumeMountGroup = v.Options.FSType, slices.Clone(v.Options.Flags), v.Options.Group
	}
	return storage.Volume{Name: v.Ref.String(), ExternalID: v.ExternalID, Context: v.Context, Capability: c}
}
