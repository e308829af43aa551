package volumesteps

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/mountuse"
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
	if v.ForcedBy != "" { // also by Abort, before the driver unmounted it
		if err := s.notServed(ctx, v, m.was); err != nil {
			return err
		}
	}
	if err := s.proveUnused(ctx, v, m); err != nil {
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

// proveUnused fails while something still has the volume that was unmounted, and so may write to it. Of files that
// are open without a mount the kernel does not always tell from which mount they came, so only a request looks for
// them that waits for holders of every mount; if it unstages the volume next, then.
func (s *Steps) proveUnused(ctx context.Context, v *Volume, m unmounting) error {
	if m.was == nil {
		return nil
	}
	of := s.mountOf(m.Path, m.was, v)
	return retryFor(ctx, heldWait, func() error {
		counts, last := func(mountuse.Holder) bool { return true }, true
		if !m.Staging {
			var err error
			if counts, last, err = s.counting(v); err != nil {
				return err
			}
		}
		held, err := mountuse.Left(of)
		if n := slices.IndexFunc(held, counts); n >= 0 {
			return stillHeld(held[n])
		}
		if err == nil && m.was.Disk != nil {
			if err = m.was.Disk.Unused(); err != nil {
				err = fmt.Errorf("it is unmounted, but %w: stop or unmount that, and the release continues", err)
			}
		}
		if err != nil || !counts(mountuse.Holder{}) || last && !m.Staging && v.Staged() {
			return err
		}
		users, err := mountuse.Open(of)
		if len(users) == 0 {
			return err
		}
		what, stop := user(users[0])
		return &InUse{stop, fmt.Errorf("it is unmounted, but still in use by %s: stop that, and the release continues", what)}
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
