package workload

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// maxEnded bounds the number of ended workloads that a status query shows.
const maxEnded = 500

// table is this node's workloads, including the ones that ended lately.
type table struct {
	node string

	mu        sync.Mutex
	workloads map[claim.WorkloadRef]*instance
}

func (t *table) all() []*instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*instance, 0, len(t.workloads))
	for _, i := range t.workloads {
		out = append(out, i)
	}
	return out
}

func (t *table) find(ref claim.WorkloadRef) (*instance, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := t.workloads[ref]; i != nil {
		return i, nil
	}
	return nil, fmt.Errorf("workload %q on node %q: %w (see: pannier workload status)", ref, t.node, ErrNotFound)
}

// owns reports whether this node has the workload and will take it down by itself.
func (t *table) owns(ref claim.WorkloadRef) bool {
	i, err := t.find(ref)
	return err == nil && !i.snapshot().State.Ended()
}

// remove forgets a workload.
func (t *table) remove(ref claim.WorkloadRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.workloads, ref)
}

// add adds a workload, and forgets the ones that ended first, beyond maxEnded.
func (t *table) add(i *instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workloads[i.ref] = i
	if len(t.workloads) <= maxEnded {
		return
	}
	type ended struct {
		ref claim.WorkloadRef
		at  time.Time
	}
	var over []ended
	for ref, i := range t.workloads { // at each start: no snapshots of all
		i.View(func() {
			if i.rec.State.Ended() {
				over = append(over, ended{ref, i.endedAt})
			}
		})
	}
	if len(over) <= maxEnded {
		return
	}
	slices.SortFunc(over, func(a, b ended) int { return b.at.Compare(a.at) })
	for _, w := range over[maxEnded:] {
		delete(t.workloads, w.ref)
	}
}

// liveRecords calls read for the volumes of each workload that has not ended, under its lock.
func (t *table) liveRecords(read func(ref claim.WorkloadRef, volumes []*volumesteps.Record)) {
	for _, i := range t.all() {
		i.View(func() {
			if !i.rec.State.Ended() {
				read(i.ref, i.rec.Volumes)
			}
		})
	}
}

// explained reports that a workload which has not ended has a volume mounted at path, or may have.
func (t *table) explained(path string) bool {
	return slices.ContainsFunc(t.all(), func(i *instance) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return !i.rec.State.Ended() && slices.ContainsFunc(i.rec.Volumes, func(v *volumesteps.Record) bool {
			return v.Target != "" && (isBelow(path, v.Target) || isBelow(path, v.Staging))
		})
	})
}

func isBelow(path, dir string) bool {
	rest, is := strings.CutPrefix(path, dir)
	return is && dir != "" && (rest == "" || rest[0] == '/')
}
