package volumesteps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/events"
)

// DetachUnknown unmounts what a claim of a workload that this node does not know may have
// mounted, from the paths of the claim alone. It may be repeated.
func (s *Steps) DetachUnknown(ctx context.Context, c claim.Claim, info claim.Volume) error {
	v := &Volume{workload: c.Workload, info: info, Record: &Record{
		Definition: info.Definition,
		Usage:      mounts.Usage{ReadOnly: c.Mode == claim.Read, AttachmentMode: c.AttachmentMode, AccessMode: c.AccessMode},
	}}
	unlock, err := s.Locks.lock(ctx, c.Volume)
	if err != nil {
		return err
	}
	defer unlock()
	targets := s.Layout.WorkloadVolume(v.PluginID, c.Workload, v.VolumeRef)
	found, err := fs.Glob(os.DirFS(targets), "*/*")
	if err != nil {
		return err
	}
	for _, usageAndRequest := range found {
		v.Target = filepath.Join(targets, usageAndRequest)
		if err := s.Unpublish(ctx, v); err != nil {
			return err
		}
	}
	// The claim is released after this, so mounts that the walk did not find count too.
	if there, err := mounts.Below(targets); err != nil || len(there) > 0 {
		return errors.Join(err, fmt.Errorf("below %s there are mounts still: %v", targets, there))
	}
	staged := s.Layout.StagingOf(v.PluginID, v.VolumeRef)
	if found, err = fs.Glob(os.DirFS(staged), "*"); err != nil {
		return err
	}
	for _, usage := range found {
		v.Staging = filepath.Join(staged, usage)
		u, err := s.stagings.load(attachmentKey(v.VolumeRef) + "/" + usage)
		if err != nil {
			return err
		}
		if u != nil {
			continue // workloads of the journal use it
		}
		if err := s.unstageNow(ctx, v, &users{}); err != nil {
			return err
		}
	}
	return nil
}

// UnmountLeftovers unmounts what lies below the drivers' folders and no record explains. Only drivers mount there. A
// volume for which claimed returns true is left to the release of that claim. Busy mounts stay and are returned.
func (s *Steps) UnmountLeftovers(ctx context.Context, claimed func(claim.VolumeRef) bool) (left []string, err error) {
	there, err := mounts.Below(s.Layout.Dir)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, mount := range slices.Backward(there) { // the last one mounted first
		ref, ours := s.Layout.Volume(mount.Path)
		if !ours || seen[mount.Path] || s.Explained(mount.Path) || claimed(ref) {
			continue
		}
		seen[mount.Path] = true // with all that is below it on the same path
		if err := s.unmountLeftover(ctx, ref, mount); err != nil {
			left = append(left, err.Error())
		}
	}
	return left, nil
}

// leftoverWait bounds the wait for a volume that a step works on: there is another repair.
const leftoverWait = time.Second

func (s *Steps) unmountLeftover(ctx context.Context, ref claim.VolumeRef, m mounts.Mount) error {
	bounded, cancel := context.WithTimeout(ctx, leftoverWait)
	defer cancel()
	unlock, err := s.Locks.lock(bounded, ref)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", m.Path, err)
	}
	defer unlock()
	if s.Explained(m.Path) { // a start has the path meanwhile; it waits for the lock before it mounts
		return nil
	}
	err = errors.Join(s.removeLeftover(ctx, ref, m.Path), s.Lease.Release(ctx, fence.Mount{Path: m.Path}))
	if err != nil {
		return err
	}
	s.Log.Warn("unmounted a mount that no record explains", "path", m.Path, "mount", m.String())
	s.Events.Publish(events.Event{
		Topic: events.TopicAgent, Type: "unmounted", Subject: m.Path,
		Message: "no record explained this mount: " + m.String(),
	})
	return nil
}

// stillMounted unmounts what is mounted where a workload had its volumes, and returns the volumes of which something
// stays. The mount table is read for this before their claims are freed, and after.
func (s *Steps) stillMounted(ctx context.Context, set *Set, skip []claim.VolumeRef) (stay []claim.VolumeRef,
	err error,
) {
	there, readErr := mounts.Read()
	for _, v := range set.Volumes {
		if v.PluginID == "" || slices.Contains(skip, v.VolumeRef) {
			continue
		}
		below := there.Below(s.Layout.WorkloadVolume(v.PluginID, v.workload, v.VolumeRef))
		failed := errors.Join(readErr, s.unmountAll(v, below))
		if !v.Request.Ephemeral() && len(there.Below(s.Layout.StagingOf(v.PluginID, v.VolumeRef))) > 0 {
			failed = errors.Join(failed, s.unmountUnstaged(ctx, v))
		}
		if failed != nil {
			stay, err = append(stay, v.VolumeRef), errors.Join(err, failed)
		}
	}
	return stay, err
}

// unmountUnstaged unmounts what is mounted where v is staged, if nobody on this node has the volume staged.
func (s *Steps) unmountUnstaged(ctx context.Context, v *Volume) error {
	bounded, cancel := context.WithTimeout(ctx, leftoverWait)
	defer cancel()
	unlock, err := s.Locks.lock(bounded, v.VolumeRef)
	if err != nil {
		if ctx.Err() == nil {
			return nil // another workload stages it: it is that one's
		}
		return err
	}
	defer unlock()
	if u, _, err := s.stagingOf(v); err != nil || u != nil {
		return err
	}
	there, err := mounts.Below(s.Layout.StagingOf(v.PluginID, v.VolumeRef)) // now that nobody stages it
	return errors.Join(err, s.unmountAll(v, there))
}

func (s *Steps) unmountAll(v *Volume, there []mounts.Mount) (err error) {
	for _, m := range slices.Backward(there) {
		if failed := s.paths.removeMount(v.VolumeRef, m.Path); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		s.paths.report(v.VolumeRef, m.Path, fmt.Sprintf("it was mounted at %s when workload %q was released: %s", m.Path, v.workload, m))
	}
	return err
}
