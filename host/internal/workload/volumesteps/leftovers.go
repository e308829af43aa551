package volumesteps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/events"
)

// DetachUnknown unmounts what a claim of a workload that this node does not know may have
// mounted, from the paths of the claim alone. It may be repeated.
func (s *Steps) DetachUnknown(ctx context.Context, c claim.Claim, info claim.Volume) error {
	v := &Volume{workload: c.Workload, info: info, Record: &Record{
		Ref: c.Volume, Driver: info.PluginID, ExternalID: info.ExternalID, Context: info.Context,
		Usage: mounts.Usage{ReadOnly: c.Mode == claim.Read, AttachmentMode: c.AttachmentMode, AccessMode: c.AccessMode},
	}}
	unlock, err := s.Locks.lock(ctx, c.Volume)
	if err != nil {
		return err
	}
	defer unlock()
	targets := s.Layout.WorkloadVolume(v.Driver, c.Workload, v.Ref)
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
	staged := s.Layout.StagingOf(v.Driver, v.Ref)
	if found, err = fs.Glob(os.DirFS(staged), "*"); err != nil {
		return err
	}
	for _, usage := range found {
		v.Staging = filepath.Join(staged, usage)
		u, err := s.loadUsers(stagings, attachmentKey(v.Ref)+"/"+usage)
		if err != nil {
			return err
		}
		if u != nil {
			continue // workloads of the journal use it
		}
		if err := s.unstageNow(ctx, v, nil); err != nil {
			return err
		}
	}
	return nil
}

// UnmountLeftovers unmounts what lies below the drivers' folders and belongs to no record and no
// claim. Only drivers mount there. What is busy stays and is returned. A volume with a claim is
// left to the release of that claim.
func (s *Steps) UnmountLeftovers(ctx context.Context, claims []claim.Claim, records []*Record) (left []string,
	err error,
) {
	there, err := mounts.Below(s.Layout.Dir)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, v := range records {
		if v.Target != "" {
			known = append(known, v.Target, v.Staging)
		}
	}
	explained := func(path string) bool {
		return slices.ContainsFunc(known, func(k string) bool { return path == k || strings.HasPrefix(path, k+"/") })
	}
	seen := map[string]bool{}
	for _, mount := range slices.Backward(there) { // the last one mounted first
		ref, ours := s.Layout.Volume(mount.Path)
		claimed := slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.Volume == ref })
		if !ours || seen[mount.Path] || explained(mount.Path) || claimed {
			continue
		}
		seen[mount.Path] = true // with all that is below it on the same path
		err := errors.Join(s.removeMount(ref, mount.Path), s.Lease.Release(ctx, fence.Mount{Path: mount.Path}))
		if err != nil {
			left = append(left, err.Error())
			continue
		}
		s.Log.Warn("unmounted a mount that no record explains", "path", mount.Path, "mount", mount.String())
		s.Events.Publish(events.Event{
			Topic: events.TopicAgent, Type: "unmounted", Subject: mount.Path,
			Message: "no record explained this mount: " + mount.String(),
		})
	}
	return left, nil
}
