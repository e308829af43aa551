package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/sdk/storage"
)

// stage mounts the volume once for all of this node's users of one usage.
func (r *run) stage(ctx context.Context, v *volume) error {
	unlock, err := r.locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	key := stagingKey(v.Ref, v.Usage)
	before, err := r.loadUsers(stagings, key)
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
	u, err := r.join(stagings, key, v)
	if err != nil {
		return err
	}
	if u.Done && same(u.Mounted, there) {
		return nil
	}
	if err := r.Layout.Make(v.Staging); err != nil {
		return r.notStaged(v, before, fmt.Errorf("make the staging directory of volume %q: %w", v.Ref, err))
	}
	if err := r.stageNow(ctx, v); err != nil {
		return err
	}
	if u.Mounted, err = mounts.At(v.Staging); err != nil {
		return err
	}
	u.Done = true
	return r.saveUsers(stagings, key, u)
}

// notStaged takes this use back before the driver was asked for it: what is in the
// way is not the host's, and undoing would take it away.
func (r *run) notStaged(v *volume, before *users, err error) error {
	if before != nil {
		return err // there is something to undo
	}
	if left := r.leave(stagings, stagingKey(v.Ref, v.Usage), v); left != nil {
		return errors.Join(err, left)
	}
	return untouchedError{err}
}

func (r *run) stageNow(ctx context.Context, v *volume) error {
	asked, err := r.asked(ctx, v)
	if err != nil {
		return err
	}
	if err := r.guard(ctx, v, stagingMount(v.volumeRecord)); err != nil {
		return err
	}
	err = r.call(ctx, "stage", v, r.limits.driver, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
		return c.Stage(ctx, d.Ref(), storage.StageRequest{
			Volume: asked, PublishContext: v.PublishContext, StagingPath: d.Translate(v.Staging),
		})
	})
	if err != nil {
		return err
	}
	return r.Lease.Valid()
}

// unstage ends this use; the last user of the usage takes the mount away.
func (r *run) unstage(ctx context.Context, v *volume) error {
	unlock, err := r.locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	key := stagingKey(v.Ref, v.Usage)
	u, err := r.loadUsers(stagings, key)
	if err != nil || u == nil {
		return err
	}
	if slices.Equal(u.Users, []string{r.user(v)}) {
		u.Done = false // from here on: should the call fail, the next user stages again
		if err := r.saveUsers(stagings, key, u); err != nil {
			return err
		}
		if err := r.unstageNow(ctx, v); err != nil {
			return err
		}
	}
	return r.leave(stagings, key, v)
}

func (r *run) unstageNow(ctx context.Context, v *volume) error {
	err := r.call(ctx, "unstage", v, 0, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
		return c.Unstage(ctx, d.Ref(), v.known(), d.Translate(v.Staging))
	})
	if err != nil {
		return err
	}
	if err := r.clear(v.Staging); err != nil {
		return err
	}
	return r.Lease.Release(ctx, stagingMount(v.volumeRecord))
}

// clear makes sure that nothing is mounted at a path that its driver has given
// up, and removes it: a driver that lost its state may have left a mount.
func (m *Manager) clear(path string) error {
	if err := m.Layout.Unmount(path); err != nil {
		return err
	}
	err := m.Layout.Remove(path)
	if errors.Is(err, mounts.ErrHoldsData) {
		// The volume is gone from here, so its claim may go. What was written beside it
		// is the operator's to look at.
		m.log.Warn("nothing is mounted there any more, but there are files", "path", path, "error", err)
		return nil
	}
	return err
}

// same says whether what is mounted is what was. Some drivers mount nothing when
// they stage.
func same(was, is *mounts.Mount) bool {
	if was == nil || is == nil {
		return was == is
	}
	return was.Same(*is)
}
