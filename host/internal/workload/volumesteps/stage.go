package volumesteps

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/storage"
)

// Stage mounts the volume once for all of this node's users of one usage.
func (s *Steps) Stage(ctx context.Context, v *Volume) error {
	unlock, err := s.Locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	key := stagingKey(v.Ref, v.Usage)
	before, err := s.loadUsers(stagings, key)
	if err != nil {
		return err
	}
	there, err := mounts.At(v.Staging)
	if err != nil {
		return err
	}
	if there != nil && before == nil {
		return fmt.Errorf("stage volume %q: %s is there already and is not ours: %s", v.Ref, v.Staging, there)
	}
	u, err := s.join(stagings, key, v)
	if err != nil {
		return err
	}
	if u.Done && sameMount(u.Mounted, there) {
		return nil
	}
	if err := s.Layout.Make(v.Staging); err != nil {
		return s.notStaged(v, before, fmt.Errorf("make the staging directory of volume %q: %w", v.Ref, err))
	}
	if before == nil { // otherwise the files may be those of a driver that mounts nothing when it stages
		if err := s.Layout.CheckEmpty(v.Staging); err != nil {
			return s.notStaged(v, before, inTheWay("stage", v, err))
		}
	}
	if err := s.stageNow(ctx, v); err != nil {
		return err
	}
	if u.Mounted, err = mounts.At(v.Staging); err != nil {
		return err
	}
	u.Done = true
	return s.saveUsers(stagings, key, u)
}

// notStaged removes this use before the driver was called for it: what is in the way is not the
// host's, and an undo would remove it.
func (s *Steps) notStaged(v *Volume, before *users, err error) error {
	if before != nil {
		return err // there is something to undo
	}
	if left := s.leave(stagings, stagingKey(v.Ref, v.Usage), v); left != nil {
		return errors.Join(err, left)
	}
	return step.NoEffect(err)
}

func (s *Steps) stageNow(ctx context.Context, v *Volume) error {
	asked, err := s.withSecrets(ctx, v)
	if err != nil {
		return err
	}
	if err := s.guard(ctx, v, v.stagingMount()); err != nil {
		return err
	}
	err = s.call(ctx, "stage", v, s.DriverWait, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
		return c.Stage(ctx, d.Ref(), storage.StageRequest{
			Volume: asked, PublishContext: v.PublishContext, StagingPath: d.Translate(v.Staging),
		})
	})
	if err != nil {
		return err
	}
	return s.Lease.Valid()
}

// Unstage ends this use; the last user of the usage unmounts the volume.
func (s *Steps) Unstage(ctx context.Context, v *Volume) error {
	unlock, err := s.Locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	key := stagingKey(v.Ref, v.Usage)
	u, err := s.loadUsers(stagings, key)
	if err != nil || u == nil {
		return err
	}
	if slices.Equal(u.Users, []string{v.user()}) {
		u.Done = false // first: if the call fails, the next user stages again
		if err := s.saveUsers(stagings, key, u); err != nil {
			return err
		}
		if err := s.unstageNow(ctx, v, u.Mounted); err != nil {
			return err
		}
	}
	return s.leave(stagings, key, v)
}

// unstageNow calls the driver; was is what it had mounted when it staged.
func (s *Steps) unstageNow(ctx context.Context, v *Volume, was *mounts.Mount) error {
	mounted := was != nil
	if was == nil {
		was, _ = mounts.At(v.Staging) // of a workload that the journal does not know
	}
	err := s.unmount(v.Ref, v.Staging, mounted, func() error {
		return s.call(ctx, "unstage", v, 0, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
			return c.Unstage(ctx, d.Ref(), v.storageVolume(), d.Translate(v.Staging))
		})
	})
	if err != nil {
		return err
	}
	if err := s.unused(ctx, was); err != nil {
		return fmt.Errorf("unstage volume %q: %w", v.Ref, err)
	}
	return s.Lease.Release(ctx, v.stagingMount())
}

// sameMount reports whether a mount is the one that was recorded. Some drivers mount nothing when
// they stage.
func sameMount(was, is *mounts.Mount) bool {
	if was == nil || is == nil {
		return was == is
	}
	return was.Same(*is)
}
