package workload

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// call makes one call to the driver of v; wait is how long the driver may take to
// become healthy. The error says what was tried, on what.
func (r *run) call(ctx context.Context, verb string, v *volume, wait time.Duration, fn func(ctx context.Context, c storage.Client, d drivers.Driver) error) error {
	if err := r.Calls.Call(ctx, v.Driver, wait, fn); err != nil {
		return fmt.Errorf("%s volume %q for %s on driver %q: %w", verb, v.Ref, r.instance, v.Driver, err)
	}
	return nil
}

// asked is the volume as a driver's call needs it. Secrets are opened for the
// call and kept nowhere.
func (r *run) asked(ctx context.Context, v *volume) (storage.Volume, error) {
	secrets, err := r.Secrets(ctx, v.info)
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
