package volumesteps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
)

// ErrClaimsLost means that the ledger has released claims that the workload had.
var ErrClaimsLost = errors.New("the ledger has released its claims, and other workloads may have the volumes")

// Claims are what this node's workloads have of the ledger: the right to use volumes.
type Claims struct {
	node    string
	layout  mounts.Layout
	ledger  cluster.Ledger
	lease   Lease
	drivers *driverCalls
	limits  limits
}

// Want returns the claims that the workload needs, with the choices that its requests leave
// open. It checks that the drivers are there, and records all that an undo needs.
func (c *Claims) Want(ctx context.Context, set *Set) (want []claim.Claim, err error) {
	for _, v := range set.Volumes {
		if v.Request.Ephemeral() {
			err = c.prepareEphemeral(ctx, v)
		} else if wanted, prepErr := c.prepare(ctx, v); prepErr != nil {
			err = prepErr
		} else {
			want, err = merge(want, wanted)
		}
		if err != nil {
			return nil, fmt.Errorf("volume block %q: %w", v.Request.Name, err)
		}
	}
	return want, nil
}

// Granted records what the ledger has granted under the lease of an epoch. A start that continues after the host was
// away must get the claims that it had: under other claims, what it has mounted is from a time when another workload
// may have had the volume in between. The claimed volume is mounted: the volume may have been redefined since it was
// read. It fails if a driver would get too many volumes.
func (c *Claims) Granted(ctx context.Context, set *Set, started command.StartWorkloadResult, epoch uint64) error {
	var absent, lost []claim.VolumeRef
	var claimed []*Volume // by this start
	set.Update(func() {
		for _, v := range set.Volumes {
			if v.Request.Ephemeral() {
				continue
			}
			n := slices.IndexFunc(started.Claims, func(o claim.Claim) bool { return o.Volume == v.VolumeRef })
			if n < 0 || n >= len(started.Volumes) {
				absent = append(absent, v.VolumeRef)
				continue
			}
			if v.Index != 0 && v.Index != started.Claims[n].Index {
				lost = append(lost, v.VolumeRef)
			}
			if v.Index == 0 {
				claimed = append(claimed, v)
			}
			v.info, v.Index = started.Volumes[n], started.Claims[n].Index
		}
		set.epoch = epoch
	})
	switch {
	case len(absent) > 0:
		return fmt.Errorf("the ledger answered the claim of workload %q without volumes %v", set.Ref(), absent)
	case len(lost) > 0:
		return fmt.Errorf("the start of workload %q cannot continue: %w: those on %v", set.Ref(), ErrClaimsLost, lost)
	}
	for _, v := range claimed {
		if err := c.use(v, v.info, v.driver, v.Usage); err != nil {
			return err
		}
	}
	return c.limits.check(ctx, set, started.Workload.CreateIndex)
}

// use records how the volume of a definition will be mounted here, with all that a later undo needs.
func (c *Claims) use(v *Volume, info claim.Volume, driver drivers.Driver, usage mounts.Usage) error {
	if info.PluginID != driver.ID {
		return fmt.Errorf("volume %q is of driver %q now, and was of %q when the start began: start it again", v.VolumeRef,
			info.PluginID, driver.ID)
	}
	options := override(info.MountOptions, v.Request.MountOptions)
	if usage.AttachmentMode == claim.FileSystem {
		if err := checkFlags(driver, info.Definition, options); err != nil {
			return err
		}
	}
	if err := cmp.Or(info.CheckProvider(driver.Fingerprint.Provider),
		info.CheckReachable(c.node, driver.Fingerprint.Node.AccessibleTopology)); err != nil {
		return err
	}
	v.set.Update(func() {
		v.driver = driver
		v.Definition, v.Usage, v.MountOptions = info.Definition, usage, options
		if v.Staging == "" { // else it may be staged already, elsewhere
			v.Staging = c.layout.Staging(v.PluginID, v.VolumeRef, usage)
		}
		v.Target = c.layout.Target(v.PluginID, v.workload, v.VolumeRef, usage, v.Request.Name)
	})
	return nil
}

// prepare fills in what a request leaves open, and checks that the driver is there.
func (c *Claims) prepare(ctx context.Context, v *Volume) (claim.Claim, error) {
	info, _, err := cluster.Ask(ctx, c.ledger, &command.QueryVolume{Ref: v.VolumeRef}, cluster.Blocking{})
	if err != nil {
		return claim.Claim{}, err
	}
	modes, err := v.modes(info)
	if err != nil {
		return claim.Claim{}, err
	}
	driver, err := c.drivers.nodeDriver(ctx, info.PluginID, v)
	if err != nil {
		return claim.Claim{}, err
	}
	usage := mounts.Usage{
		ReadOnly:       v.Request.ReadOnly || modes.AccessMode.ReadOnly(),
		AttachmentMode: modes.AttachmentMode, AccessMode: modes.AccessMode,
	}
	if err := c.use(v, info, driver, usage); err != nil {
		return claim.Claim{}, err
	}
	mode := claim.Write
	if usage.ReadOnly {
		mode = claim.Read
	}
	return claim.Claim{
		Volume: v.VolumeRef, Workload: v.workload, Node: c.node, DriverNodeID: driver.Fingerprint.Node.NodeID,
		Mode: mode, AccessMode: modes.AccessMode, AttachmentMode: modes.AttachmentMode,
	}, nil
}

// nodeDriver waits until a driver is healthy; it must have a node service.
func (c *driverCalls) nodeDriver(ctx context.Context, id string, v *Volume) (drivers.Driver, error) {
	wait := c.DriverWait
	if v.set.check {
		wait = 0
	}
	d, err := c.caller.Await(ctx, id, wait)
	if err == nil && d.Fingerprint.Node == nil {
		err = fmt.Errorf("driver %q has no node service on this node: it cannot mount volume %q here", d.ID, v.VolumeRef)
	}
	return d, err
}

// checkFlags refuses mount flags that the driver's operator has not allowed, also if the volume was registered before
// they were checked. A workload cannot ask for suid and dev: only the volume's definition decides about them.
func checkFlags(driver drivers.Driver, of claim.Definition, options claim.MountOptions) error {
	if err := driver.CheckMountFlags(options.Flags); err != nil {
		return fmt.Errorf("volume %q: %w", of.VolumeRef, err)
	}
	for _, flag := range []string{"suid", "dev"} {
		if drivers.Asks(options.Flags, flag, "no"+flag) && !drivers.Asks(of.MountOptions.Flags, flag, "no"+flag) {
			return fmt.Errorf("volume %q: mount_flags: %q: %w in a workload: the volume's definition must have it",
				of.VolumeRef, flag, drivers.ErrMountFlag)
		}
	}
	return nil
}

// override returns the volume's mount options with the request's options in their place.
func override(volume, request claim.MountOptions) claim.MountOptions {
	if request.FSType != "" {
		volume.FSType = request.FSType
	}
	if len(request.Flags) > 0 {
		volume.Flags = request.Flags
	}
	if request.Group != "" {
		volume.Group = request.Group
	}
	return volume
}

// merge adds a request's claim to those of the workload: requests for one volume share a claim,
// which is for writing when one of them writes.
func merge(all []claim.Claim, c claim.Claim) ([]claim.Claim, error) {
	n := slices.IndexFunc(all, func(o claim.Claim) bool { return o.Volume == c.Volume })
	if n < 0 {
		return append(all, c), nil
	}
	if all[n].AccessMode != c.AccessMode || all[n].AttachmentMode != c.AttachmentMode {
		return nil, fmt.Errorf("source %q is asked for as %s %s and as %s %s: one workload uses a volume in one way",
			c.Volume, all[n].AccessMode, all[n].AttachmentMode, c.AccessMode, c.AttachmentMode)
	}
	if c.Mode == claim.Write {
		all[n].Mode = claim.Write
	}
	return all, nil
}

// modes are those that the request was given before a restart of the host, even if the volume's capabilities have
// changed since; else the modes of the request, or the modes of the volume's only capability that fits it.
func (v *Volume) modes(info claim.Volume) (claim.Capability, error) {
	if v.Usage.AccessMode != "" {
		return v.Usage.Modes(), nil
	}
	req := v.Request
	fit := slices.DeleteFunc(slices.Clone(info.Capabilities), func(c claim.Capability) bool {
		return req.AccessMode != "" && req.AccessMode != c.AccessMode ||
			req.AttachmentMode != "" && req.AttachmentMode != c.AttachmentMode
	})
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		return claim.Capability{}, fmt.Errorf(
			"volume %q has no capability with access_mode %q and attachment_mode %q; it has %s: %w",
			v.VolumeRef, req.AccessMode, req.AttachmentMode, capabilities(info), claim.ErrUnsupported)
	default:
		return claim.Capability{}, fmt.Errorf(
			"volume %q has several capabilities, so access_mode and attachment_mode must say which: %s: %w",
			v.VolumeRef, capabilities(info), claim.ErrUnsupported)
	}
}

func capabilities(v claim.Volume) string {
	all := make([]string, len(v.Capabilities))
	for n, c := range v.Capabilities {
		all[n] = string(c.AccessMode) + " " + string(c.AttachmentMode)
	}
	return strings.Join(all, ", ")
}

// Release releases the claims of volumes that have left nothing on this node, and waits until the leader has freed
// them. While others are left it fails, to be retried.
func (s *Steps) Release(ctx context.Context, set *Set) error {
	clean, left := s.Claims.releasable(set)
	stay, err := s.stillMounted(ctx, set, left)
	if err != nil {
		s.Log.Warn("the mounts of a workload cannot all be removed", "workload", set.Ref(), "error", err)
	}
	left = append(left, stay...)
	clean = slices.DeleteFunc(clean, func(c claim.Claim) bool { return slices.Contains(stay, c.Volume) })
	if len(clean) > 0 {
		if freed := cluster.NodeDetached(ctx, s.Ledger, clean); freed != nil {
			return errors.Join(err, fmt.Errorf("release the claims of workload %q: %w", set.Ref(), freed))
		}
	}
	if len(left) > 0 {
		return errors.Join(err, fmt.Errorf("workload %q keeps %v until their mounts are gone", set.Ref(), left))
	}
	if freed := cluster.AwaitFreed(ctx, s.Ledger, set.Ref(), clean); freed != nil {
		err = errors.Join(err, fmt.Errorf("wait until the claims of workload %q are freed: %w", set.Ref(), freed))
	}
	if err != nil {
		return err
	}
	_, err = s.stillMounted(ctx, set, nil)
	return err
}

// releasable returns the claims of volumes that have left nothing on this node, and the other volumes.
func (c *Claims) releasable(set *Set) (clean []claim.Claim, left []claim.VolumeRef) {
	set.View(func() {
		for _, v := range set.Volumes {
			if len(v.Steps) > 0 && !slices.Contains(left, v.VolumeRef) {
				left = append(left, v.VolumeRef)
			}
		}
		for _, v := range set.Volumes {
			if v.Request.Ephemeral() || slices.Contains(left, v.VolumeRef) ||
				slices.ContainsFunc(clean, func(c claim.Claim) bool { return c.Volume == v.VolumeRef }) {
				continue
			}
			clean = append(clean, claim.Claim{
				Volume: v.VolumeRef, Workload: v.workload, Node: c.node, Index: v.Index, ForcedBy: v.ForcedBy,
			})
		}
	})
	return clean, left
}

// Attach makes the volume available on this node. Its first user here calls the driver's
// controller; the others take the publish context of that call.
func (s *Steps) Attach(ctx context.Context, v *Volume) error {
	unlock, err := s.Locks.lock(ctx, v.VolumeRef)
	if err != nil {
		return err
	}
	defer unlock()
	u, err := s.attachments.join(attachmentKey(v.VolumeRef), v)
	if err != nil {
		return err
	}
	if !u.Done {
		info := v.info
		info.MountOptions = v.MountOptions // with those of the request
		if u.PublishContext, err = s.Controller.Attach(ctx, info, v.Usage.Modes(), s.Node); err != nil {
			return err
		}
		u.Done = true
		if err := s.attachments.save(attachmentKey(v.VolumeRef), u); err != nil {
			return err
		}
	}
	v.set.Update(func() { v.PublishContext = u.PublishContext })
	return nil
}

// LeaveAttachment ends this use. The leader decides whether the controller is asked to detach,
// from the claims that exist when this one is released.
func (s *Steps) LeaveAttachment(ctx context.Context, v *Volume) error {
	unlock, err := s.Locks.lock(ctx, v.VolumeRef)
	if err != nil {
		return err
	}
	defer unlock()
	return s.attachments.leave(attachmentKey(v.VolumeRef), v)
}
