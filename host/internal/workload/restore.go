package workload

import (
	"context"
	"fmt"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/events"
	"github.com/pannier/pannier/host/internal/journal"
	"github.com/pannier/pannier/host/internal/mounts"
	"github.com/pannier/pannier/host/internal/process"
)

// Open brings back the workloads that the journal knows, each once: what was
// starting goes on starting, what ran goes on if all of it is still mounted and
// is mounted again if not, what was stopping goes on stopping. After a reboot
// nothing is mounted and no process is left: everything is released.
//
// It then ends, in the ledger, the workloads of this node that the journal does
// not know, and deals with mounts that nothing explains; it returns those that
// it left alone. The ledger must answer.
func (m *Manager) Open(ctx context.Context) (leftovers []string, err error) {
	if err := m.noteBoot(); err != nil {
		return nil, err
	}
	var found []*record
	if err := m.journal.View(func(tx *journal.Tx) error {
		return records.Each(tx, func(_ string, rec *record) error { found = append(found, rec); return nil })
	}); err != nil {
		return nil, err
	}
	refs, claims, err := m.Ledger.OnNode(ctx, m.Node)
	if err != nil {
		return nil, fmt.Errorf("read this node's workloads in the ledger: %w", err)
	}
	if err := m.endUnknown(ctx, refs, found); err != nil {
		return nil, err
	}
	if leftovers, err = m.leftovers(claims, found); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rec := range found {
		m.restore(rec)
	}
	return leftovers, nil
}

// noteBoot notes this boot of the machine. After another one nothing is mounted
// or attached any more: users stay until their workloads are undone.
func (m *Manager) noteBoot() error {
	now := process.BootID()
	return m.journal.Update(journal.Process, func(tx *journal.Tx) error {
		was, err := boots.Get(tx, "")
		if err != nil || was != nil && *was == now {
			return err
		}
		for _, b := range []journal.Bucket[users]{attachments, stagings} {
			all := map[string]*users{}
			if err := b.Each(tx, func(key string, u *users) error { all[key] = u; return nil }); err != nil {
				return err
			}
			for key, u := range all {
				u.Done, u.Mounted = false, nil
				if err := b.Put(tx, key, u); err != nil {
					return err
				}
			}
		}
		return boots.Put(tx, "", &now)
	})
}

// restore gives a record its goroutine. m.mu is held.
func (m *Manager) restore(rec *record) {
	i := newInstance(*rec)
	i.resumed = true
	r := &run{m, i}
	if rec.BootID != process.BootID() {
		i.rec.Owner, i.rec.Process, i.rec.MountNS = nil, nil, 0
		i.askStop("the machine was started anew")
	} else {
		r.observe()
		i.intact = rec.State == Running && r.allMounted()
		if rec.State == Running && !i.intact {
			m.log.Warn("not everything of the workload is mounted any more; it is mounted again", "workload", i.ref)
		}
	}
	m.launch(i)
}

// allMounted compares what was published with what is mounted.
func (r *run) allMounted() bool {
	for _, v := range r.rec.Volumes {
		there, err := mounts.At(v.Target)
		if err != nil || v.Steps["publish"] != done || !same(v.Mounted, there) {
			return false
		}
	}
	return true
}

// endUnknown ends the workloads that the ledger believes to run here and of
// which the journal knows nothing: their claims are then released.
func (m *Manager) endUnknown(ctx context.Context, refs []claim.WorkloadRef, known []*record) error {
	for _, ref := range refs {
		if slices.ContainsFunc(known, func(rec *record) bool { return rec.Spec.WorkloadRef == ref }) {
			continue
		}
		m.log.Warn("the ledger has a workload of this node that the journal does not know; its claims are released", "workload", ref)
		if err := m.Ledger.EndWorkload(ctx, ref); err != nil {
			return fmt.Errorf("end workload %q: %w", ref, err)
		}
	}
	return nil
}

// leftovers unmounts what lies below the drivers' folders and belongs to no
// record and no claim. Only drivers mount there, so it is ours; what is busy
// stays and is returned. A volume with a claim is left to the release path.
func (m *Manager) leftovers(claims []claim.Claim, known []*record) (left []string, err error) {
	there, err := mounts.Below(m.Layout.Dir)
	if err != nil {
		return nil, err
	}
	explained := map[string]bool{}
	for _, rec := range known {
		for _, v := range rec.Volumes {
			explained[v.Target], explained[v.Staging] = true, true
		}
	}
	for _, mount := range slices.Backward(there) { // the last one mounted first
		ref, ours := m.Layout.Volume(mount.Path)
		if !ours || explained[mount.Path] || slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.Volume == ref }) {
			continue
		}
		if err := m.Layout.Unmount(mount.Path); err != nil {
			left = append(left, err.Error())
			continue
		}
		m.log.Warn("unmounted what no record explains", "path", mount.Path, "mount", mount.String())
		m.Events.Publish(events.Event{
			Topic: events.TopicAgent, Type: "unmounted", Subject: mount.Path,
			Message: "no record explained this mount: " + mount.String(),
		})
	}
	return left, nil
}
