package volumesteps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/internal/mountgroup"
	"github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/storage"
)

// Publish mounts the volume for this request. The host makes the parent of the target, the
// driver makes the target (CSI spec, NodePublishVolume). A symbolic link in the way stays as it
// is: the driver is called neither for the start nor for its undo.
func (s *Steps) Publish(ctx context.Context, v *Volume) error {
	return s.Calls.apart(ctx, v, "publish", func(ctx context.Context) error { return s.publish(ctx, v) })
}

func (s *Steps) publish(ctx context.Context, v *Volume) error {
	// A repair that did not know of the target yet has ended when the lock was taken (see UnmountLeftovers).
	unlock, err := s.Locks.lock(ctx, v.VolumeRef)
	if err != nil {
		return err
	}
	unlock()
	before, err := mounts.Read()
	if err != nil {
		return err
	}
	there := before.At(v.Target)
	switch {
	case there != nil && v.Mounted != nil && v.Mounted.Same(*there):
		return nil // published before a restart of the host
	case there != nil && !v.set.Resumed():
		// It may be the volume, left by an earlier run: the undo unmounts it before the claim
		// is released.
		return fmt.Errorf("publish volume %q: %s is mounted already and not by this workload: %s", v.VolumeRef, v.Target, there)
	}
	asked, err := s.withSecrets(ctx, v)
	if err != nil {
		return err
	}
	if err := s.Layout.MakeParent(v.Target); err != nil {
		return step.NoEffect(fmt.Errorf("make the directory of volume %q: %w", v.VolumeRef, err))
	}
	if there == nil {
		if err := s.Layout.CheckEmpty(v.Target); err != nil {
			return step.NoEffect(inTheWay("publish", v, err))
		}
	}
	if v.guarded() {
		if err := s.guard(ctx, v, v.targetMount()); err != nil {
			return err
		}
	}
	if err := s.publishNow(ctx, v, asked); err != nil {
		return err
	}
	restricted := s.restrict(v)
	mounted, err := s.checkPublished(v) // says best why it could not be restricted
	if err = cmp.Or(err, restricted); err == nil {
		err = setGroup(ctx, v)
	}
	if err != nil {
		return fmt.Errorf("publish volume %q for workload %q on driver %q: %w%s", v.VolumeRef, v.workload, v.PluginID, err,
			s.unmountStrays(v, before))
	}
	v.set.Update(func() { v.Mounted = mounted })
	if v.guarded() { // which fails if the lease has ended meanwhile
		if err := s.Lease.Protect(ctx, v.targetMount()); err != nil {
			return err
		}
	}
	if v.info.Grown && !v.Usage.ReadOnly {
		err := s.grow(ctx, v)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.NoteExpanded(v.info, err) // the volume can be used with its old size
	}
	return nil
}

// NoteExpanded notes whether what is mounted of a volume on this node has its new size, for its users and for people.
func (s *Steps) NoteExpanded(v claim.Volume, err error) {
	why := ""
	if err != nil {
		namespace := ""
		if v.Namespace != claim.DefaultNamespace {
			namespace = "-namespace " + printable.Argument(v.Namespace) + " "
		}
		why = fmt.Sprintf("volume %q is used with its old size on node %q: %v; to try again, start the workload again or run "+
			"pannier volume expand %s%s %d", v.VolumeRef, s.Node, err, namespace, printable.Argument(v.ID),
			max(v.Capacity, v.CapacityMin))
		s.Events.Publish(events.Event{
			Topic: events.TopicVolume, Type: "not-expanded", Subject: v.String(), Message: why,
			Details: map[string]string{"driver": v.PluginID, "node": s.Node},
		})
	}
	s.Expanded(v.VolumeRef, why)
}

func (s *Steps) publishNow(ctx context.Context, v *Volume, asked storage.Volume) error {
	m := mounting{
		verb: "publish", path: v.Target, earlier: v.Unanswered,
		save: func(u *unanswered) error { return v.set.Save(func() { v.Unanswered = u }) },
		call: func(ctx context.Context, c storage.Client, d drivers.Driver) error {
			req := storage.PublishRequest{
				Volume: asked, PublishContext: v.PublishContext, TargetPath: d.Translate(v.Target), ReadOnly: v.Usage.ReadOnly,
			}
			if v.Stages() {
				req.StagingPath = d.Translate(v.Staging)
			}
			return c.Publish(ctx, d.Ref(), req)
		},
	}
	left, err := s.Calls.mount(ctx, v, m)
	return errors.Join(err, m.save(left))
}

// grow expands the file system to the size of the volume, which may have been expanded while it
// was not mounted. It may be repeated: NodeExpandVolume is idempotent (CSI spec).
func (s *Steps) grow(ctx context.Context, v *Volume) error {
	if n := v.driver.Fingerprint.Node; n == nil || !n.Expand {
		return nil
	}
	asked, err := s.withSecrets(ctx, v)
	if err != nil {
		return err
	}
	return s.Calls.call(ctx, "expand", v, s.Calls.DriverWait, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
		req := storage.ExpandNodeRequest{
			Volume:      asked,
			CapacityMin: v.info.CapacityMin, CapacityMax: v.info.CapacityMax, VolumePath: d.Translate(v.Target),
		}
		if v.Stages() {
			req.StagingPath = d.Translate(v.Staging)
		}
		_, err := c.ExpandNode(ctx, d.Ref(), req)
		return err
	})
}

// restrict makes the mount read-only for a reader, and set-user-ID programs and device files in the volume ineffective,
// unless the volume's definition says otherwise. Wherever the mount is bound, that holds. A driver need not do it, and
// one in a mount namespace of its own cannot: a remount there is not seen here.
func (s *Steps) restrict(v *Volume) error {
	if v.Usage.AttachmentMode == claim.BlockDevice {
		return nil
	}
	var attributes uint64
	if !v.SUID() {
		attributes |= unix.MOUNT_ATTR_NOSUID
	}
	if !v.Dev() {
		attributes |= unix.MOUNT_ATTR_NODEV
	}
	if v.Usage.ReadOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	return s.Layout.Restrict(v.Target, attributes)
}

// setGroup gives a writer's volume to volume_mount_group, unless its driver has done that.
func setGroup(ctx context.Context, v *Volume) error {
	group, n := v.MountOptions.Group, v.driver.Fingerprint.Node
	if group == "" || v.Usage.ReadOnly || v.Usage.AttachmentMode == claim.BlockDevice || n != nil && n.VolumeMountGroup {
		return nil
	}
	gid, err := strconv.ParseUint(group, 10, 31)
	if err == nil {
		err = mountgroup.Set(ctx, v.Target, int(gid))
	}
	if err != nil {
		err = fmt.Errorf("volume_mount_group = %q: the driver lacks VOLUME_MOUNT_GROUP, and the host cannot do it: %w: set "+
			"the group where the storage is, and leave it out here", group, err)
	}
	return err
}

// SUID reports whether set-user-ID programs in the volume work.
func (v *Record) SUID() bool { return drivers.Asks(v.MountOptions.Flags, "suid", "nosuid") }

// Dev reports whether device files in the volume work.
func (v *Record) Dev() bool { return drivers.Asks(v.MountOptions.Flags, "dev", "nodev") }

// checkPublished looks at what the driver has mounted. A success without a mount would let the workload write to the
// host's own disk, and so would one that shows the staging directory of a volume that was not mounted there. A driver
// need not mount when it stages (CSI spec, NodeStageVolume), so this is checked here, for both calls.
func (s *Steps) checkPublished(v *Volume) (*mounts.Mount, error) {
	there, err := mounts.Read()
	if err != nil {
		return nil, err
	}
	m := there.At(v.Target)
	if v.Usage.AttachmentMode == claim.BlockDevice {
		device, err := mounts.Device(v.Target)
		if err == nil && device == "" {
			err = fmt.Errorf("the driver answered with success, but %s is no block device", v.Target)
		}
		if err == nil && v.Usage.ReadOnly {
			var readOnly bool
			if readOnly, err = mounts.ReadOnlyDevice(device); err == nil && !readOnly {
				err = fmt.Errorf("the driver answered with success, but the block device %s can be written to", v.Target)
			}
		}
		return m, err
	}
	switch {
	case m == nil:
		return nil, fmt.Errorf("the driver answered with success, but nothing is mounted at %s: "+
			"does it mount in a namespace of its own? (docs/drivers.md, propagation)", v.Target)
	case v.Usage.ReadOnly && !m.ReadOnly:
		return nil, errors.New("the driver answered with success, but the mount is not read-only")
	}
	if s.Layout.OnDisk(there, v.PluginID, *m) {
		err = fmt.Errorf("the driver answered with success, but %s shows a directory of this host's own disk (%s): it has not "+
			"mounted the volume, neither when it staged it at %s nor now", v.Target, m.Root, v.Staging)
	}
	return m, err
}

// unmountStrays unmounts what a driver has mounted in its folder since before and no record explains, after it has lied
// about a mount of v, and says so.
func (s *Steps) unmountStrays(v *Volume, before mounts.Table) (said string) {
	now, err := mounts.Below(s.Layout.Driver(v.PluginID))
	if err != nil {
		return ""
	}
	for _, m := range slices.Backward(now) {
		if _, ours := s.Layout.Volume(m.Path); !ours || before.At(m.Path) != nil || s.Explained(m.Path) {
			continue
		}
		said += "; it has mounted at " + m.Path
		if err := s.paths.removeMount(v.VolumeRef, m.Path); err != nil {
			said += ", which cannot be undone yet: " + err.Error()
		}
	}
	return said
}

// AllMounted reports whether everything that was published is still mounted.
func (s *Steps) AllMounted(set *Set) bool {
	return !slices.ContainsFunc(set.Volumes, func(v *Volume) bool {
		there, err := s.checkPublished(v)
		return err != nil || !v.Published() || !sameMount(v.Mounted, there)
	})
}

// heldWait is how long an unpublish waits for the holders of a volume: a process that is just
// ending holds it a moment longer.
const heldWait = 250 * time.Millisecond

// Unpublish unmounts the volume for this request, unless a container still has it: a container's
// mount is a copy, and stays when the host's is unmounted. The claim would be released while the
// container continues writing.
func (s *Steps) Unpublish(ctx context.Context, v *Volume) error {
	if err := s.Calls.landed(ctx, v); err != nil {
		return err
	}
	// Held over the call: of two workloads that share the volume and stop at once, one sees
	// that it is the last. A start with the volume need not wait for this lock.
	unlock, err := s.leaving.lock(ctx, v.VolumeRef)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.notHeld(ctx, v); err != nil {
		return err
	}
	return s.unpublishNow(ctx, v)
}

func (s *Steps) unpublishNow(ctx context.Context, v *Volume) error {
	m := unmounting{
		Mount: v.targetMount(), was: v.Mounted, verb: "unpublish", ours: true, unanswered: v.Unanswered,
		call: func(ctx context.Context, c storage.Client, d drivers.Driver) error {
			return c.Unpublish(ctx, d.Ref(), v.storageVolume(), d.Translate(v.Target))
		},
	}
	if err := s.release(ctx, v, m); err != nil {
		return err
	}
	if v.set != nil {
		v.set.Update(func() { v.Unanswered = nil })
	}
	return nil
}

// notHeld fails while another process or container is seen to hold the volume. What cannot be looked at is not: the
// proof after the unmount decides.
func (s *Steps) notHeld(ctx context.Context, v *Volume) error {
	return retryFor(ctx, heldWait, func() error {
		counts, _, err := s.counting(v)
		held, lookErr := mountuse.Holders(s.mountOf(v.Target, v.Mounted, v))
		if err := errors.Join(err, lookErr); err != nil {
			s.Log.Warn("it cannot be seen who has a volume: its driver is asked to unmount it", "volume", v.VolumeRef,
				"workload", v.workload, "error", err)
			return nil
		}
		if n := slices.IndexFunc(held, counts); n >= 0 {
			return fmt.Errorf("unpublish volume %q for workload %q: %w", v.VolumeRef, v.workload, stillHeld(held[n]))
		}
		return nil
	})
}

func stillHeld(h mountuse.Holder) error {
	return &InUse{h.Stop(), fmt.Errorf("it is still in use by %s: stop that, and the release continues", h)}
}

// mountOf is a mount of v, as it was recorded.
func (s *Steps) mountOf(path string, was *mounts.Mount, v *Volume) mountuse.Volume {
	of := mountuse.Volume{Dir: s.Layout.Dir, Destination: v.Request.Destination}
	of.Path, of.Was = path, identity(was)
	return of
}

func identity(m *mounts.Mount) *mountuse.Identity {
	if m == nil {
		return nil
	}
	return &m.Identity
}

// counting returns whether this request has to wait for a holder, and whether it is the last one. A holder's mount
// does not always tell which of several requests on this node it was copied from. So the last request waits for all
// holders, and the last one that writes for all holders that may write; before that, another request may be the one
// that is held.
func (s *Steps) counting(v *Volume) (counts func(mountuse.Holder) bool, last bool, err error) {
	others, writers, err := s.others(v)
	lastWriter := !writers && !v.Usage.ReadOnly
	return func(h mountuse.Holder) bool { return !others || lastWriter && !h.ReadOnly || h.Only }, !others, err
}

// others reports whether the volume is published for other requests on this node, and whether one
// of them may write.
func (s *Steps) others(v *Volume) (found, writers bool, err error) {
	there, err := mounts.Below(s.Layout.Driver(v.PluginID))
	if err != nil {
		return false, false, err
	}
	for _, m := range there {
		ref, published := s.Layout.Published(m.Path)
		if published && ref == v.VolumeRef && m.Path != v.Target {
			found, writers = true, writers || !m.ReadOnly
		}
	}
	return found, writers, nil
}
