package volumesteps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/internal/bounded"
	"github.com/pannier/pannier/internal/procfs"
)

// How long a release that is forced waits for the driver, and for the server of a FUSE file system that is unmounted.
const (
	forceWait  = 10 * time.Second
	serverWait = 5 * time.Second
)

// forcedBy is the operator who forces the release; empty: nobody does.
func (v *Volume) forcedBy() string {
	if v.set == nil {
		return ""
	}
	return v.set.ForcedBy()
}

// calling is the context of a driver's call that unmounts the volume: it is short if the release is forced.
func (v *Volume) calling(ctx context.Context) (context.Context, context.CancelFunc) {
	if v.forcedBy() == "" {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, forceWait)
}

// byForce unmounts a path that the driver has not unmounted, for the reason err, if an operator forces the release.
// What has the volume in use is waited for as without force, even if the mount is a FUSE file system that nothing
// serves: files that were open before may still be written (FUSE passthrough). was is what was mounted; of a FUSE file
// system the server must have ended.
func (s *Steps) byForce(ctx context.Context, v *Volume, path string, was *mounts.Mount, err error) error {
	by := v.forcedBy()
	if err == nil || ctx.Err() != nil {
		return err
	}
	if by == "" {
		return v.suggestForce(err)
	}
	if unmountErr := s.Layout.Unmount(path); unmountErr != nil {
		return fmt.Errorf("%w; the driver: %w", s.paths.inUse(path, unmountErr), err)
	}
	if err := s.notServed(ctx, v, was); err != nil {
		return err
	}
	if err := s.paths.removeMount(v.VolumeRef, path); err != nil {
		return err
	}
	v.set.Update(func() { v.ForcedBy = by })
	s.Log.Warn("a volume was unmounted by force, without its driver", "volume", v.VolumeRef, "workload", v.workload, "path", path,
		"by", by, "error", err)
	s.Events.Publish(events.Event{
		Topic: events.TopicVolume, Type: "forced", Subject: v.String(),
		Message: fmt.Sprintf("%s had it unmounted at %s without driver %q, which did not do it: %v", by, path, v.PluginID, err),
		Details: map[string]string{"by": by, "path": path, "workload": v.workload.String(), "driver": v.PluginID},
	})
	return nil
}

// suggestForce adds to the error of a driver that is gone what an operator can do.
func (v *Volume) suggestForce(err error) error {
	if v.set == nil || !errors.Is(err, drivers.ErrUnhealthy) && !errors.Is(err, drivers.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w; if it stays so: pannier workload stop -force %s", err, v.workload.ID)
}

// Fails returns why nobody can use what is mounted at the path of a volume; nil: it can be used, or nothing is there.
func Fails(ref claim.VolumeRef, path string) error {
	switch err := mountuse.Answers(path); {
	case errors.Is(err, bounded.ErrNoAnswer):
		return fmt.Errorf("the file system of volume %q does not answer", ref)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the file system of volume %q fails: %w", ref, err)
	}
	return nil
}

// Abort ends the file systems of a workload that do not answer: processes that wait for one can end then, and it can be
// unmounted. An operator has it done (see ForcedBy), since what was not written yet is lost.
func (s *Steps) Abort(set *Set) {
	for _, v := range set.Volumes {
		for _, path := range []string{v.Target, v.Staging} {
			if path == "" || !errors.Is(mountuse.Answers(path), bounded.ErrNoAnswer) {
				continue
			}
			by := set.ForcedBy()
			err := cmp.Or(set.Save(func() { v.ForcedBy = by }), s.Layout.Abort(path))
			s.Log.Warn("all calls to the file system of a volume are ended by force, since it does not answer", "volume",
				v.VolumeRef, "workload", v.workload, "path", path, "by", by, "error", err)
			s.Events.Publish(events.Event{
				Topic: events.TopicVolume, Type: "aborted", Subject: v.String(),
				Message: fmt.Sprintf("%s had all calls to its file system at %s ended, which did not answer", by, path),
				Details: map[string]string{"by": by, "path": path, "workload": v.workload.String()},
			})
		}
	}
}

// notServed fails while a process serves a FUSE file system that is unmounted: it may still write to the volume.
func (s *Steps) notServed(ctx context.Context, v *Volume, was *mounts.Mount) error {
	if was == nil || !strings.HasPrefix(was.FSType, "fuse") {
		return nil
	}
	return retryFor(ctx, serverWait, func() error {
		there, err := mounts.Below("")
		if err != nil || slices.ContainsFunc(there, func(m mounts.Mount) bool { return m.Device == was.Device }) {
			return err // it has other mounts, and is not this volume's alone
		}
		pids := mountuse.Servers(was.Device)
		if len(pids) == 0 {
			return nil
		}
		kill := fmt.Sprintf("kill %d", pids[0])
		if st, err := procfs.ReadStat(procfs.Dir(pids[0])); err == nil && st.State == 'T' { // it handles no other signal
			kill = fmt.Sprintf("kill -KILL %d", pids[0])
		}
		return &InUse{kill, fmt.Errorf("volume %q is unmounted, but process %d (%s) still serves it and may write to it: end "+
			"that (%s), and the release continues", v.VolumeRef, pids[0], procfs.Command(pids[0]), kill)}
	})
}
