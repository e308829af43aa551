package volumesteps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/storage"
)

// Stage mounts the volume once for all of this node's users: a volume has one staging path on a node (CSI spec,
// NodeStageVolume). What only one user asks for, such as read-only, is for its publish.
func (s *Steps) Stage(ctx context.Context, v *Volume) error {
	return s.Calls.apart(ctx, v, "stage", func(ctx context.Context) error { return s.stage(ctx, v) })
}

func (s *Steps) stage(ctx context.Context, v *Volume) error {
	unlock, err := s.Locks.lock(ctx, v.VolumeRef)
	if err != nil {
		return err
	}
	defer unlock()
	before, path, err := s.stagingOf(v)
	if err == nil && v.Staging != path {
		err = v.set.Save(func() { v.Staging = path }) // before anything is there
	}
	if err != nil {
		return err
	}
	table, err := mounts.Read()
	if err != nil {
		return err
	}
	if there := table.Below(s.Layout.StagingOf(v.PluginID, v.VolumeRef)); len(there) > 0 && before == nil {
		return fmt.Errorf("stage volume %q: %s is there already and is not ours: %s", v.VolumeRef, there[0].Path, there[0])
	}
	if err := before.fits(v); err != nil {
		return step.NoEffect(err)
	}
	key := v.stagingKey()
	if before != nil && before.Done && sameMount(before.Mounted, table.At(v.Staging)) {
		_, err := s.stagings.join(key, v)
		return err
	}
	u, err := s.stagings.join(key, v)
	if err != nil {
		return err
	}
	err = s.Layout.Make(v.Staging)
	if err != nil {
		err = fmt.Errorf("make the staging directory of volume %q: %w", v.VolumeRef, err)
	} else if before == nil { // else the files may be those of a driver that mounts nothing when it stages
		if err = s.Layout.CheckEmpty(v.Staging); err != nil {
			err = inTheWay("stage", v, err)
		}
	}
	if err != nil {
		if before != nil {
			return err // there is something to undo
		}
		// What is in the way is not the host's, and an undo would remove it.
		if left := s.stagings.leave(key, v); left != nil {
			return errors.Join(err, left)
		}
		return step.NoEffect(err)
	}
	mounted, err := s.stageNow(ctx, v, table, u)
	if err == nil {
		u.Mounted, u.Done = mounted, true
	}
	return errors.Join(err, s.stagings.save(key, u))
}

// stagingOf returns the users of the volume's staging mount on this node, whichever usage the first of them had, and
// its path; nil: there are none.
func (s *Steps) stagingOf(v *Volume) (u *users, path string, err error) {
	own, other := v.Usage, v.Usage
	other.ReadOnly = !own.ReadOnly // a volume's claims agree on the modes
	for _, usage := range []mounts.Usage{own, other} {
		path := s.Layout.Staging(v.PluginID, v.VolumeRef, usage)
		u, err := s.stagings.load(attachmentKey(v.VolumeRef) + "/" + filepath.Base(path))
		if err != nil || u != nil {
			return u, path, err
		}
	}
	return nil, s.Layout.Staging(v.PluginID, v.VolumeRef, own), nil
}

// fits fails if the volume is staged for others with mount options that contradict v's.
func (u *users) fits(v *Volume) error {
	if u == nil || v.Usage.AttachmentMode == claim.BlockDevice {
		return nil
	}
	me := v.user()
	n := slices.IndexFunc(u.Users, func(other string) bool { return other != me })
	if n < 0 {
		return nil
	}
	var differs string
	switch {
	case u.Options.FSType != v.MountOptions.FSType:
		differs = "fs_type"
	case u.Options.Group != v.MountOptions.Group:
		differs = "volume_mount_group"
	case !slices.Equal(stageFlags(u.Options.Flags), stageFlags(v.MountOptions.Flags)):
		differs = "mount_flags"
	default:
		return nil
	}
	parts := strings.SplitN(u.Users[n], "/", 3)
	return fmt.Errorf("stage volume %q for workload %q (%s): workload %q (%s) has it staged on this node with another %s, and a "+
		"volume is staged once: give both the same mount_options, or start it when the other has ended",
		v.VolumeRef, v.workload, v.Request.Name, claim.WorkloadRef{Namespace: parts[0], ID: parts[1]}, parts[2], differs)
}

// stageFlags are the flags on which all users of a staging mount must agree, sorted: all but those that only say which
// times of access are written, which drivers set for each target.
func stageFlags(flags []string) []string {
	hints := []string{"atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime"}
	flags = slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return slices.Contains(hints, f) })
	slices.Sort(flags)
	return slices.Compact(flags)
}

// stageNow calls the driver, and returns what it has mounted. before is the mount table at some time before.
func (s *Steps) stageNow(ctx context.Context, v *Volume, before mounts.Table, u *users) (*mounts.Mount, error) {
	asked, err := s.withSecrets(ctx, v)
	if err != nil {
		return nil, err
	}
	if err := s.guard(ctx, v, v.stagingMount()); err != nil {
		return nil, err
	}
	u.Unanswered, err = s.Calls.mount(ctx, v, mounting{
		verb: "stage", path: v.Staging, earlier: u.Unanswered,
		save: func(now *unanswered) error {
			with := *u
			with.Unanswered = now
			return s.stagings.save(v.stagingKey(), &with)
		},
		call: func(ctx context.Context, c storage.Client, d drivers.Driver) error {
			return c.Stage(ctx, d.Ref(), storage.StageRequest{
				Volume: asked, PublishContext: v.PublishContext, StagingPath: d.Translate(v.Staging),
			})
		},
	})
	if err != nil {
		return nil, err
	}
	if err := s.Lease.Valid(); err != nil {
		return nil, err
	}
	// No mount there is no lie yet: a driver may only prepare the volume (see checkPublished).
	now, err := mounts.Read()
	if err != nil {
		return nil, err
	}
	if len(now.Below(v.Staging)) > 0 {
		m := v.stagingMount()
		mounted := now.At(v.Staging)
		m.Was = identity(mounted)
		return mounted, s.Lease.Protect(ctx, m)
	}
	if said := s.unmountStrays(v, before); said != "" {
		return nil, fmt.Errorf("stage volume %q for workload %q on driver %q: the driver answered with success, but nothing is "+
			"mounted at %s%s", v.VolumeRef, v.workload, v.PluginID, v.Staging, said)
	}
	return nil, nil
}

// Unstage ends this use; the last user unmounts the volume.
func (s *Steps) Unstage(ctx context.Context, v *Volume) error {
	if err := s.Calls.landed(ctx, v); err != nil {
		return err
	}
	unlock, err := s.Locks.lock(ctx, v.VolumeRef)
	if err != nil {
		return err
	}
	defer unlock()
	key := v.stagingKey()
	u, err := s.stagings.load(key)
	if err != nil || u == nil {
		return err
	}
	if slices.Equal(u.Users, []string{v.user()}) {
		u.Done = false // first: if the call fails, the next user stages again
		if err := s.stagings.save(key, u); err != nil {
			return err
		}
		if err := s.unstageNow(ctx, v, u); err != nil {
			return err
		}
	}
	return s.stagings.leave(key, v)
}

// unstageNow calls the driver; u is the record of the staging mount.
func (s *Steps) unstageNow(ctx context.Context, v *Volume, u *users) error {
	return s.release(ctx, v, unmounting{
		Mount: v.stagingMount(), was: u.Mounted, unanswered: u.Unanswered, verb: "unstage", ours: u.Mounted != nil,
		call: func(ctx context.Context, c storage.Client, d drivers.Driver) error {
			return c.Unstage(ctx, d.Ref(), v.storageVolume(), d.Translate(v.Staging))
		},
	})
}

// sameMount reports whether a mount is the one that was recorded. Some drivers mount nothing when
// they stage.
func sameMount(was, is *mounts.Mount) bool {
	if was == nil || is == nil {
		return was == is
	}
	return was.Same(*is)
}
