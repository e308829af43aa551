package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/journal"
)

// Open brings back the workloads that the journal knows, each once: what was
// starting goes on starting, what ran goes on if all of it is still mounted and
// is mounted again if not, what was stopping goes on stopping. After a reboot
// nothing is mounted and no process is left: everything is released.
//
// Before any of them goes on, what the ledger has of this node is compared with the journal
// (see meet); it returns the mounts that it left alone. Where Patient is set and the ledger
// does not answer at once, that is done later: until then the workloads are Unknown and
// stay as they are, and others cannot be started.
func (m *Manager) Open(ctx context.Context) (leftovers []string, err error) {
	if err := m.Layout.Check(); err != nil {
		return nil, err
	}
	if err := m.noteBoot(); err != nil {
		return nil, err
	}
	var found []*record
	if err := m.journal.View(func(tx *journal.Tx) error {
		return records.Each(tx, func(_ string, rec *record) error { found = append(found, rec); return nil })
	}); err != nil {
		return nil, err
	}
	restored, err := m.restoreAll(ctx, found)
	if err == nil {
		leftovers, err = m.meetFirst(ctx, found)
	}
	if err != nil && (restored == nil || !m.Patient) {
		m.abandon(restored)
		return nil, err
	}
	away := err
	m.mu.Lock()
	defer m.mu.Unlock()
	registered := false
	for _, i := range restored {
		registered = registered || len(i.services) > 0
		m.launch(i)
	}
	if registered {
		m.Services.Changed()
	}
	if away != nil {
		m.log.Warn("the ledger cannot be reached; this node's workloads stay as they are until it can", "workloads", len(restored), "error", away)
		m.live.Go(func() { m.meetLater(m.ctx, found) })
		return nil, nil
	}
	close(m.met)
	return leftovers, nil
}

// restoreAll makes the instances of all records; they take no step yet. After an error there
// are none.
func (m *Manager) restoreAll(ctx context.Context, found []*record) ([]*instance, error) {
	if err := m.restorePlaces(found); err != nil {
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
		m.mu.Lock()
		m.workloads[i.ref] = i
		m.mu.Unlock()
	}
	return restored, nil
}

// abandon lets go of instances that never had a goroutine.
func (m *Manager) abandon(all []*instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range all {
		i.letGo()
		delete(m.workloads, i.ref)
	}
}

// noteBoot notes this boot of the machine. After another one nothing is mounted
// or attached any more: users stay until their workloads are undone.
func (m *Manager) noteBoot() error {
	now := m.bootID
	return m.journal.Update(func(tx *journal.Tx) error {
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

// restore makes an instance of a record.
func (m *Manager) restore(ctx context.Context, rec *record) (*instance, error) {
	i := m.instance(*rec)
	i.resumed, i.met = true, m.met
	if rec.BootID != m.bootID {
		i.rec.Owner, i.rec.Process, i.rec.MountNS = nil, nil, nil
		i.askStop("the machine was started anew")
		return i, nil
	}
	r := &run{m, i}
	if err := r.observe(ctx); err != nil {
		return i, fmt.Errorf("restore %s: %w", i, err)
	}
	if rec.State == Running {
		if i.intact = r.allMounted(); !i.intact {
			m.log.Warn("not everything of the workload is mounted any more; it is mounted again", "workload", i.ref)
			i.rec.State = Starting // nobody may use it before that
		}
	}
	return i, nil
}

// allMounted compares what was published with what is mounted.
func (r *run) allMounted() bool {
	return !slices.ContainsFunc(r.volumes, func(v *volume) bool {
		there, err := r.published(v)
		return err != nil || v.Steps["publish"] != done || !same(v.Mounted, there)
	})
}

// endUnknown ends the workloads that the ledger believes to run here and of
// which the journal knows nothing: their claims are then released.
func (m *Manager) endUnknown(ctx context.Context, standing []claim.Workload) error {
	for _, w := range standing {
		if m.Owns(w.Ref) {
			continue
		}
		m.log.Warn("the ledger has a workload of this node that the journal does not know; its claims are released", "workload", w.Ref)
		if err := m.Ledger.EndWorkload(ctx, claim.Run{Ref: w.Ref, Node: m.Node, Index: w.CreateIndex}); err != nil {
			return fmt.Errorf("end workload %q: %w", w.Ref, err)
		}
	}
	return nil
}

// leftovers unmounts what lies below the drivers' folders and belongs to no
// record and no claim. Only drivers mount there, so it is ours; what is busy
// stays and is returned. A volume with a claim is left to the release path.
func (m *Manager) leftovers(ctx context.Context, claims []claim.Claim, records []*record) (left []string, err error) {
	there, err := mounts.Below(m.Layout.Dir)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, rec := range records {
		for _, v := range rec.Volumes {
			if v.Target != "" {
				known = append(known, v.Target, v.Staging)
			}
		}
	}
	explained := func(path string) bool {
		return slices.ContainsFunc(known, func(k string) bool { return path == k || strings.HasPrefix(path, k+"/") })
	}
	seen := map[string]bool{}
	for _, mount := range slices.Backward(there) { // the last one mounted first
		ref, ours := m.Layout.Volume(mount.Path)
		if !ours || seen[mount.Path] || explained(mount.Path) || slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.Volume == ref }) {
			continue
		}
		seen[mount.Path] = true // with all that is below it on the same path
		if err := errors.Join(m.clear(mount.Path), m.Lease.Release(ctx, fence.Mount{Path: mount.Path})); err != nil {
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
