package volumesteps

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/sdk/storage"
)

// unmounting is a call that unmounts what a driver has mounted for a volume, or may have.
type unmounting struct {
	fence.Mount
	was        *mounts.Mount // as it was recorded; nil: it was not
	ours       bool          // see unmount
	unanswered *unanswered   // a call that mounts it
	verb       string
	call       func(ctx context.Context, c storage.Client, d drivers.Driver) error
}

// release has the driver unmount, and returns when nothing can use the volume through that mount any more, nor be
// mounted there by an earlier call.
func (s *Steps) release(ctx context.Context, v *Volume, m unmounting) error {
	waits := s.Calls.settled(v, m.unanswered)
	if m.was == nil {
		m.was, _ = mounts.At(m.Path) // of a workload that the journal does not know
	}
	calling, cancel := v.calling(ctx)
	defer cancel()
	err := s.paths.unmount(v.VolumeRef, m.Path, m.ours, func() error {
		return s.Calls.call(calling, m.verb, v, 0, m.call)
	})
	if err = s.byForce(ctx, v, m.Path, m.was, err); err != nil {
		return err
	}
	if err := s.unused(ctx, m.was); err != nil {
		of := ""
		if !m.Staging {
			of = fmt.Sprintf(" for workload %q", v.workload)
		}
		return fmt.Errorf("%s volume %q%s: %w", m.verb, v.VolumeRef, of, err)
	}
	if waits != nil {
		return waits
	}
	if err := s.paths.removeEmpty(m.Path); err != nil {
		return err
	}
	if !v.guarded() {
		return nil
	}
	return s.Lease.Release(ctx, m.Mount)
}

// unused fails while something that no mount table of the host shows still has the block device of a volume that was
// unmounted, and so may write to it.
func (s *Steps) unused(ctx context.Context, was *mounts.Mount) error {
	if was == nil || was.Disk == nil {
		return nil
	}
	return retryFor(ctx, heldWait, func() error {
		if err := was.Disk.Unused(); err != nil {
			return fmt.Errorf("it is unmounted, but %w: stop or unmount that, and the release continues", err)
		}
		return nil
	})
}

// retryFor repeats a check until it returns nil, for some time.
func retryFor(ctx context.Context, long time.Duration, check func() error) error {
	tick := time.NewTicker(long / 10)
	defer tick.Stop()
	for deadline := time.Now().Add(long); ; {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
