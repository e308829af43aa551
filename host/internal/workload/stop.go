package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pannier/pannier/cluster/claim"
)

// Stop takes a workload down and returns when nothing is left of it. It goes on when ctx ends;
// calling it again makes the next attempt at once. Stopping a workload that has ended is success.
func (m *Manager) Stop(ctx context.Context, ref claim.WorkloadRef, reason string, progress func(Step)) (Workload, error) {
	i, err := m.find(ref)
	if err != nil {
		return Workload{}, err
	}
	i.askStop(reason)
	undone := func(s Step) {
		if s.Undo && progress != nil {
			progress(s)
		}
	}
	return m.follow(ctx, i, undone, func(s State, _ bool) bool { return s.Ended() })
}

// StopAll takes all workloads of this node down, side by side, and waits until they have ended, or
// until ctx ends.
func (m *Manager) StopAll(ctx context.Context, reason string) error {
	all := m.all()
	errs := make([]error, len(all))
	var stops sync.WaitGroup
	for n, i := range all {
		stops.Go(func() { _, errs[n] = m.Stop(ctx, i.ref, reason, nil) })
	}
	stops.Wait()
	return errors.Join(errs...)
}

// Drain takes all workloads of this node down one by one, the one that was started last first, and
// returns when all have ended and their claims are released, or when ctx ends. A workload whose
// release has to wait does not hold up the others. Until Undrain no workload can be started
// (claim.ErrIneligible); reason says why. It may be repeated.
func (m *Manager) Drain(ctx context.Context, reason string) error {
	m.mu.Lock()
	m.draining = reason
	m.mu.Unlock()
	up := slices.DeleteFunc(m.all(), func(i *instance) bool { return i.snapshot().State.Ended() })
	slices.SortFunc(up, func(a, b *instance) int {
		return cmp.Or(b.rec.StartedAt.Compare(a.rec.StartedAt), cmp.Compare(key(a.ref), key(b.ref)))
	})
	for _, i := range up {
		i.askStop(reason)
		released := func(s State, waits bool) bool { return s.Ended() || s == Stopping && waits }
		if _, err := m.follow(ctx, i, nil, released); err != nil {
			return fmt.Errorf("stop %s: %w", i, err)
		}
	}
	for _, i := range up {
		w, err := m.follow(ctx, i, nil, func(s State, _ bool) bool { return s.Ended() })
		if err != nil {
			return fmt.Errorf("wait until %s is released: %w: %s", i, err, w.Waiting)
		}
	}
	return nil
}

// Undrain allows workloads to be started again.
func (m *Manager) Undrain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = ""
}
