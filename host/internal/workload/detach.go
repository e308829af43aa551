package workload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
)

// Detach takes a volume off this node for the holder of a claim. A workload that
// this node knows is stopped as a whole, unless its process lives; of one that it
// does not know, whatever is at the paths of that claim is undone. It returns
// what it did, and may be repeated.
func (m *Manager) Detach(ctx context.Context, c claim.Claim, info claim.Volume) (did string, err error) {
	i, err := m.find(c.Workload)
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

// Owns says whether this node has the workload and takes it down by itself.
func (m *Manager) Owns(ref claim.WorkloadRef) bool {
	i, err := m.find(ref)
	return err == nil && !i.snapshot().State.Ended()
}

// DetachUnknown undoes a claim from its paths alone. It may be repeated.
func (m *Manager) DetachUnknown(ctx context.Context, c claim.Claim, info claim.Volume) error {
	r := &run{m, m.instance(record{Spec: Spec{WorkloadRef: c.Workload}})}
	v := &volume{info: info, volumeRecord: &volumeRecord{
		Ref: c.Volume, Driver: info.PluginID, ExternalID: info.ExternalID, Context: info.Context,
		Usage: mounts.Usage{ReadOnly: c.Mode == claim.Read, AttachmentMode: c.AttachmentMode, AccessMode: c.AccessMode},
	}}
	unlock, err := m.locks.lock(ctx, c.Volume)
	if err != nil {
		return err
	}
	defer unlock()
	targets := m.Layout.WorkloadVolume(v.Driver, c.Workload, v.Ref)
	found, err := fs.Glob(os.DirFS(targets), "*/*")
	if err != nil {
		return err
	}
	for _, usageAndRequest := range found {
		v.Target = filepath.Join(targets, usageAndRequest)
		if err := r.withdraw(ctx, v); err != nil {
			return err
		}
	}
	// Whatever the walk did not find counts too: the claim goes after this.
	if there, err := mounts.Below(targets); err != nil || len(there) > 0 {
		return errors.Join(err, fmt.Errorf("below %s there are mounts still: %v", targets, there))
	}
	staged := m.Layout.StagingOf(v.Driver, v.Ref)
	if found, err = fs.Glob(os.DirFS(staged), "*"); err != nil {
		return err
	}
	for _, usage := range found {
		v.Staging = filepath.Join(staged, usage)
		u, err := m.loadUsers(stagings, attachmentKey(v.Ref)+"/"+usage)
		if err != nil {
			return err
		}
		if u != nil {
			continue // workloads of the journal use it
		}
		if err := r.unstageNow(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// Placement is where a volume is mounted on this node for one workload.
type Placement struct {
	Workload claim.WorkloadRef
	Driver   string
	Target   string
	Staging  string // empty where the driver does not stage
	Usage    mounts.Usage
}

// Placements tells where a volume is mounted on this node.
func (m *Manager) Placements(ref claim.VolumeRef) []Placement {
	var out []Placement
	for _, i := range m.all() {
		i.mu.Lock()
		for _, v := range i.rec.Volumes {
			if v.Ref != ref || v.Steps["publish"] != done {
				continue
			}
			p := Placement{Workload: i.ref, Driver: v.Driver, Target: v.Target, Usage: v.Usage}
			if v.Steps["stage"] == done {
				p.Staging = v.Staging
			}
			out = append(out, p)
		}
		i.mu.Unlock()
	}
	return out
}

// Through names the workloads with anything mounted or attached through a driver.
func (m *Manager) Through(driver string) []string {
	var out []string
	for _, i := range m.all() {
		i.mu.Lock()
		for _, v := range i.rec.Volumes {
			if v.Driver == driver && len(v.Steps) > 0 {
				out = append(out, fmt.Sprintf("volume %q of workload %q", v.Ref, i.ref))
			}
		}
		i.mu.Unlock()
	}
	return out
}
