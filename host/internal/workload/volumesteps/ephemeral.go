package volumesteps

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/sdk/storage"
)

// asking begins the keys of the volume context that say for whom a volume is made (claim.CheckKeys).
const asking = "csi.storage.k8s.io/"

// Name is the volume's for people: an ephemeral one has no name but its request's.
func (v *Record) Name() string {
	if v.Request.Ephemeral() {
		return v.Request.Name
	}
	return v.String()
}

// makeEphemeral names the volume, as the kubelet does, and says for whom it is. Another run of the workload gets
// another volume.
func (v *Record) makeEphemeral(w claim.WorkloadRef, run string) {
	v.ExternalID = fmt.Sprintf("csi-%x", sha256.Sum256([]byte(run+"/"+v.Request.Name)))
	v.ID = v.ExternalID
	v.Context = map[string]string{}
	maps.Copy(v.Context, v.Request.Attributes)
	maps.Copy(v.Context, map[string]string{ // last: a workload cannot pretend to be another
		asking + "ephemeral":           "true",
		asking + "pod.name":            w.ID,
		asking + "pod.namespace":       w.Namespace,
		asking + "pod.uid":             run,
		asking + "serviceAccount.name": w.ID,
	})
}

// prepareEphemeral checks that the driver is there and open for it, and records all that a later undo needs.
func (c *Claims) prepareEphemeral(ctx context.Context, v *Volume) error {
	d, err := c.drivers.caller.Drivers.Get(v.Request.Driver)
	if err == nil {
		err = d.CheckEphemeral(v.workload.Namespace)
	}
	if err != nil {
		return err
	}
	if d, err = c.drivers.nodeDriver(ctx, d.ID, v); err != nil {
		return err
	}
	if err := checkFlags(d, claim.Definition{VolumeRef: v.VolumeRef}, v.Request.MountOptions); err != nil {
		return err
	}
	usage := mounts.Usage{
		ReadOnly: v.Request.ReadOnly, AttachmentMode: claim.FileSystem, AccessMode: claim.SingleNodeWriter, Ephemeral: true,
	}
	v.set.Update(func() {
		v.driver, v.PluginID, v.Usage, v.MountOptions = d, d.ID, usage, v.Request.MountOptions
		v.info = claim.Volume{Definition: v.Definition}
		v.Target = c.layout.Target(v.PluginID, v.workload, v.VolumeRef, usage, v.Request.Name)
	})
	return nil
}

// HasClaims reports whether the workload has claims on volumes, or is to have them. Without any, the node's lease says
// nothing about it: no other node can use what it has mounted.
func (set *Set) HasClaims() bool {
	return slices.ContainsFunc(set.Volumes, func(v *Volume) bool { return !v.Request.Ephemeral() })
}

// guarded reports whether the fence unmounts the volume when the lease is over.
func (v *Volume) guarded() bool { return v.set == nil || v.set.HasClaims() }

// kept names what an unanswered call of the volume holds up.
func (v *Volume) kept() string {
	if v.Request.Ephemeral() {
		return "the workload is not released"
	}
	return "its claim is kept"
}

// ephemeralOf returns the ephemeral volumes that a driver has on this node: those that have their place, and those of
// set that do not.
func (l *limits) ephemeralOf(driver string, set *Set) (placed, fresh []onNode) {
	l.records(func(w claim.WorkloadRef, records []*Record) {
		for _, r := range records {
			o := onNode{ref: r.VolumeRef, users: []string{fmt.Sprintf("workload %q", w)}}
			switch {
			case !r.Request.Ephemeral() || r.PluginID != driver:
			case r.Index != 0:
				placed = append(placed, o)
			case w == set.Ref():
				fresh = append(fresh, o)
			}
		}
	})
	return placed, fresh
}

// removeLeftover unmounts what no record explains at a path. An ephemeral volume is unpublished by its driver, which
// may keep something of it otherwise: the path names the volume.
func (s *Steps) removeLeftover(ctx context.Context, ref claim.VolumeRef, path string) error {
	driver, w, ephemeral := s.Layout.Ephemeral(path)
	if !ephemeral {
		return s.paths.removeMount(ref, path)
	}
	v := &Volume{workload: w, Record: &Record{Definition: claim.Definition{
		VolumeRef: ref, PluginID: driver, ExternalID: ref.ID,
	}}}
	ctx, cancel := context.WithTimeout(ctx, forceWait)
	defer cancel()
	err := s.paths.unmount(ref, path, true, func() error {
		return s.Calls.call(ctx, "unpublish", v, 0, func(ctx context.Context, c storage.Client, d drivers.Driver) error {
			return c.Unpublish(ctx, d.Ref(), v.storageVolume(), d.Translate(path))
		})
	})
	if errors.Is(err, drivers.ErrNotFound) {
		return s.paths.removeMount(ref, path)
	}
	if err != nil {
		return err
	}
	return s.paths.removeEmpty(path)
}
