package workload

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/conditions"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// Detach unmounts a volume on this node for the holder of a claim. A workload that this node knows
// is stopped as a whole, unless its process lives; of a workload that it does not know, all mounts
// at the paths of that claim are unmounted. It returns what it did, and may be repeated.
func (m *Manager) Detach(ctx context.Context, c claim.Claim, info claim.Volume) (did string, err error) {
	i, err := m.known.find(c.Workload)
	if err != nil || i.snapshot().State.Ended() {
		if err := m.DetachUnknown(ctx, c, info); err != nil {
			return "", err
		}
		return fmt.Sprintf("unmounted what was left of it on node %q", m.Node), nil
	}
	if s := i.snapshot(); s.State == Running && s.PID != 0 {
		return "", fmt.Errorf("%s still runs (process %d): stop it first: pannier workload stop %s", i, s.PID, c.Workload.ID)
	}
	if _, err := m.Stop(ctx, c.Workload, fmt.Sprintf("volume %q was detached", c.Volume), nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("stopped workload %q", c.Workload), nil
}

// Owns reports whether this node has the workload and will take it down by itself.
func (m *Manager) Owns(ref claim.WorkloadRef) bool {
	return m.known.owns(ref)
}

// DetachUnknown unmounts what a claim of a workload that this node does not know may have mounted.
// It may be repeated.
func (m *Manager) DetachUnknown(ctx context.Context, c claim.Claim, info claim.Volume) error {
	return m.volumes.DetachUnknown(ctx, c, info)
}

// Placement is where a volume is mounted on this node for one workload.
type Placement struct {
	Workload claim.WorkloadRef
	Driver   string
	mounts.Place
	Usage mounts.Usage
}

// Placements lists where a volume is mounted on this node.
func (m *Manager) Placements(ref claim.VolumeRef) []Placement {
	var out []Placement
	for _, i := range m.known.all() {
		i.mu.Lock()
		for _, v := range i.rec.Volumes {
			if v.VolumeRef != ref || !v.Published() {
				continue
			}
			out = append(out, Placement{Workload: i.ref, Driver: v.PluginID, Place: v.Place(), Usage: v.Usage})
		}
		i.mu.Unlock()
	}
	return out
}

// Expand expands what is mounted of a volume on this node, if a workload may write to it: once, at a path of such a
// workload. The outcome is shown with the volume and with the workloads that use it.
func (m *Manager) Expand(v claim.Volume, do func(at mounts.Place) error) (places int, err error) {
	for _, p := range m.Placements(v.VolumeRef) {
		if !p.Usage.ReadOnly {
			err := do(p.Place)
			m.volumes.NoteExpanded(v, err)
			return 1, err
		}
	}
	return 0, nil
}

// noteExpanded is volumesteps.Config.Expanded.
func (m *Manager) noteExpanded(ref claim.VolumeRef, why string) {
	for _, i := range m.known.all() {
		for _, v := range i.volumes.Volumes {
			changed := false
			i.View(func() { changed = v.VolumeRef == ref && v.MayBeMounted() && v.Unexpanded != why })
			if !changed {
				continue
			}
			if err := i.Save(func() { v.Unexpanded = why }); err != nil {
				m.log.Warn("the journal does not have whether a volume is expanded", "workload", i.ref, "error", err)
			}
		}
	}
}

// Holder has a volume of a workload.
type Holder struct {
	Request string // the name of the volume block
	mountuse.Holder
}

// Holders lists who has the volumes of a workload that are mounted on this node, besides the host; see
// mountuse.Holders. They have no block devices that were made elsewhere than at the destination.
func (m *Manager) Holders(ref claim.WorkloadRef) (all []Holder, err error) {
	w, err := m.Get(ref)
	if err != nil {
		return nil, err
	}
	for _, at := range w.Mounts {
		held, err := mountuse.Holders(mountuse.Volume{
			Original: mountuse.Original{Path: at.HostPath}, Dir: m.Layout.Dir, Destination: at.Destination,
		})
		if err != nil {
			return nil, fmt.Errorf("find who has volume %q of workload %q: %w", at.Volume, ref, err)
		}
		for _, h := range held {
			all = append(all, Holder{at.Request, h})
		}
	}
	return all, nil
}

// Mounted lists the registered volumes that are mounted on this node, each once with one of the places where it is. Of
// a volume it has what its driver needs to be asked about it.
func (m *Manager) Mounted() []conditions.Volume {
	found := map[claim.VolumeRef]conditions.Volume{}
	for _, i := range m.known.all() {
		i.mu.Lock()
		for _, v := range i.rec.Volumes {
			if !v.Published() || v.Request.Ephemeral() {
				continue
			}
			found[v.VolumeRef] = conditions.Volume{At: v.Place(), Definition: v.Definition}
		}
		i.mu.Unlock()
	}
	return slices.Collect(maps.Values(found))
}

// WorkloadsUsing names the workloads, and their volumes, that have anything mounted or attached by a
// driver, and the driver's mounts that belong to none of them. Before Open it reads the journal.
func (m *Manager) WorkloadsUsing(driver string) []string {
	var out []string
	var known []string // paths of volumes
	use := func(ref claim.WorkloadRef, volumes []*volumesteps.Record) {
		for _, v := range volumes {
			if v.PluginID == driver && len(v.Steps) > 0 {
				kind := "volume"
				if v.Request.Ephemeral() {
					kind = "ephemeral volume"
				}
				out = append(out, fmt.Sprintf("%s %q of workload %q", kind, v.Name(), ref))
				known = append(known, v.Target, v.Staging)
			}
		}
	}
	if err := m.eachRecord(use); err != nil {
		return append(out, fmt.Sprintf("workloads that cannot be read: %v", err))
	}
	there, err := mounts.Below(m.Layout.Driver(driver))
	if err != nil {
		return append(out, fmt.Sprintf("mounts that cannot be read: %v", err))
	}
	for _, mount := range there {
		_, ours := m.Layout.Volume(mount.Path)
		if ours && !slices.ContainsFunc(known, func(k string) bool { return k != "" && mountuse.Within(mount.Path, k) }) {
			out = append(out, "the mount at "+mount.Path)
		}
	}
	return out
}

// eachRecord calls read for the volumes of each workload, under its lock.
func (m *Manager) eachRecord(read func(ref claim.WorkloadRef, volumes []*volumesteps.Record)) error {
	m.mu.Lock()
	restored := m.restored
	m.mu.Unlock()
	if !restored {
		return m.journal.View(func(tx *journal.Tx) error {
			return records.Each(tx, func(_ string, rec *record) error {
				read(rec.Spec.WorkloadRef, rec.Volumes)
				return nil
			})
		})
	}
	for _, i := range m.known.all() {
		i.View(func() { read(i.ref, i.rec.Volumes) })
	}
	return nil
}
