package workload

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/internal/printable"
)

// Open restores the workloads of the journal. Starts and stops that were interrupted continue. A workload that was
// running continues to run if all of its volumes are still mounted; otherwise they are mounted again. After a reboot
// nothing is mounted and no process is left, so everything is released.
//
// Before that, the journal is compared with what the ledger has of this node (see reconcile); Open returns the mounts
// that this left alone. If RemoteLedger is set and the ledger does not answer at once, the comparison is done later:
// until then the workloads are Unknown and stay as they are, and no other can be started.
func (m *Manager) Open(ctx context.Context) (leftovers []string, err error) {
	if err := m.Layout.Check(); err != nil {
		return nil, err
	}
	if err := m.noteBoot(); err != nil {
		return nil, err
	}
	reports := m.Events.Subscribe(m.ctx, 0) //nolint:contextcheck // until it is closed
	m.live.Go(func() { m.noteRetries(reports) })
	var found []*record
	if err := m.journal.View(func(tx *journal.Tx) error {
		return records.Each(tx, func(_ string, rec *record) error { found = append(found, rec); return nil })
	}); err != nil {
		return nil, err
	}
	for _, rec := range found {
		for _, v := range rec.Volumes {
			if from := m.Layout.MovedFrom(v.Target); from != "" && v.MayBeMounted() && rec.BootID == m.bootID {
				return nil, fmt.Errorf("workload %q uses volume %q, and its data_dir %s was moved to %s meanwhile: %s, and start the "+
					"agent with data_dir = %q; stop its workloads before you move it", rec.Spec.WorkloadRef, v.VolumeRef, from,
					filepath.Dir(m.Layout.Dir), moveBack(filepath.Dir(m.Layout.Dir), from), from)
			}
		}
	}
	restored, err := m.restoreAll(ctx, found)
	changed := m.Drivers.Changed()
	if err == nil {
		leftovers, err = m.reconcile(ctx, found)
	}
	if err != nil && (restored == nil || !m.RemoteLedger) {
		m.abandon(restored)
		return nil, err
	}
	unreachable := err
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live.Go(func() { m.Repairs.keep(m.ctx, m.reconciled, changed) })
	registered := false
	for _, i := range restored {
		registered = registered || len(i.services) > 0
		m.live.Go(func() { (&run{m, i}).live(m.ctx) })
	}
	if registered {
		m.Services.Changed()
	}
	if unreachable != nil {
		m.log.Warn("the ledger cannot be reached; this node's workloads stay as they are until it can", "workloads",
			len(restored), "error", unreachable)
		m.live.Go(func() { m.reconcileLater(m.ctx, found) })
		return nil, nil
	}
	close(m.reconciled)
	return leftovers, nil
}

func moveBack(dataDir, to string) string {
	return fmt.Sprintf("move it back (mv -T %s %s)", printable.Argument(dataDir), printable.Argument(to))
}

// moved adds to the error of a workload that is not known where another data directory has volumes mounted for one of
// its name.
func (m *Manager) moved(ref claim.WorkloadRef, err error) error {
	there, readErr := mounts.Below("")
	for _, at := range there {
		dir := m.Layout.MovedFrom(at.Path)
		if dir == "" || readErr != nil {
			continue
		}
		other := mounts.Layout{Dir: filepath.Join(dir, filepath.Base(m.Layout.Dir))}
		if w, ok := other.Workload(at.Path); ok && w == ref {
			own := filepath.Dir(m.Layout.Dir)
			return fmt.Errorf("%w, but %s is mounted for one of that name by an agent whose data_dir is %s: if that was moved from "+
				"%s, stop the agent, move %s away, %s, and start the agent again", err, at.Path, dir, own, own, moveBack(dir, own))
		}
	}
	return err
}

// restoreAll makes the instances of all records; they do nothing yet. After an error there are
// none.
func (m *Manager) restoreAll(ctx context.Context, found []*record) ([]*instance, error) {
	if err := m.restorePortsAndSecrets(found); err != nil {
		return nil, err
	}
	restored := []*instance{}
	for _, rec := range found {
		if len(rec.Devices) > 0 {
			m.Devices.Hold(rec.Spec.WorkloadRef, rec.Devices)
		}
		i, err := m.restore(ctx, rec)
		restored = append(restored, i)
		if err != nil {
			m.abandon(restored)
			return nil, err
		}
		m.known.add(i)
	}
	m.mu.Lock()
	m.restored = true
	m.mu.Unlock()
	return restored, nil
}

// abandon forgets instances that never had a goroutine.
func (m *Manager) abandon(all []*instance) {
	for _, i := range all {
		i.releaseProcesses()
		m.known.remove(i.ref)
	}
}

// noteBoot records this boot of the machine. After a reboot nothing is mounted or attached any
// more.
func (m *Manager) noteBoot() error {
	now := m.bootID
	return m.journal.Update(func(tx *journal.Tx) error {
		was, err := boots.Get(tx, "")
		if err != nil || was != nil && *was == now {
			return err
		}
		if err := volumesteps.ForgetMounts(tx); err != nil {
			return err
		}
		return boots.Put(tx, "", &now)
	})
}

// restore makes an instance of a record.
func (m *Manager) restore(ctx context.Context, rec *record) (*instance, error) {
	i := m.instance(*rec)
	i.resumed, i.reconciled = true, m.reconciled
	if rec.BootID != m.bootID {
		i.rec.Owner, i.rec.Process, i.rec.MountNS = nil, nil, nil
		for _, v := range rec.Volumes {
			v.Unanswered = nil
		}
		i.askStop("the machine was rebooted")
		return i, nil
	}
	r := &run{m, i}
	var err error
	if i.owner, err = r.findProcess(ctx, "owner", i.rec.Owner); err == nil {
		i.process, err = r.findProcess(ctx, "process", i.rec.Process)
	}
	if err == nil {
		err = r.observeNamespace(ctx)
	}
	if err != nil {
		return i, fmt.Errorf("restore %s: %w", i, err)
	}
	if rec.State == Running {
		if i.intact = m.volumes.AllMounted(i.volumes); !i.intact {
			m.log.Warn("not everything of the workload is mounted any more; it is mounted again", "workload", i.ref)
			i.rec.State = Starting // it may not be used before that
		}
	}
	return i, nil
}

// restorePortsAndSecrets gives the workloads of the journal their ports back, and removes the files
// with secrets that belong to none of them.
func (m *Manager) restorePortsAndSecrets(found []*record) error {
	for _, rec := range found {
		if err := m.Ports.Restore(rec.Spec.WorkloadRef, rec.ports()...); err != nil {
			return fmt.Errorf("restore the ports of workload %q: %w", rec.Spec.WorkloadRef, err)
		}
	}
	for _, rec := range found {
		for _, l := range listeners(&rec.Spec) {
			// If another workload has it, that is reported when the proxy listens.
			_, _ = m.Ports.HoldListener(rec.Spec.WorkloadRef, l.Address, l.Static)
		}
	}
	removed, err := m.SecretsDir.Sweep(func(p secretsdir.Place) bool {
		return slices.ContainsFunc(found, func(rec *record) bool { return rec.hasSecrets(p) })
	})
	if err != nil {
		m.log.Warn("the secrets of ended workloads cannot be removed", "error", err)
	}
	if len(removed) > 0 {
		m.log.Warn("removed secrets that no record explains", "paths", removed)
	}
	return nil
}

// ports are all of the workload's ports.
func (rec *record) ports() (all []int) {
	for _, p := range rec.Ports {
		all = append(all, p)
	}
	for _, s := range rec.Services {
		if s.AdminPort != 0 {
			all = append(all, s.AdminPort, s.ReadyPort)
		}
	}
	return all
}

// hasSecrets reports that a folder is for the files of one of the services.
func (rec *record) hasSecrets(p secretsdir.Place) bool {
	return rec.Spec.Namespace == p.Namespace && rec.Spec.ID == p.Workload &&
		slices.ContainsFunc(rec.Services,
			func(s *servicesteps.Record) bool { return s.Service.Name == p.Service && s.Token.ID != "" })
}
