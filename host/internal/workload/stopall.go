package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// StopAll takes every workload of this node down, side by side, and waits until
// they have ended, or until ctx ends.
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

// Drain takes every workload of this node down, one after the other, the one that was started
// last first, and returns when all have ended and their claims are free, or when ctx ends.
// One whose release has to wait does not hold up the others. From now on until Undrain no
// other is started (claim.ErrIneligible); reason says why. It may be repeated.
func (m *Manager) Drain(ctx context.Context, reason string) error {
	m.mu.Lock()
	m.draining = reason
	m.mu.Unlock()
	up := slices.DeleteFunc(m.all(), func(i *instance) bool { return i.snapshot().State.Ended() })
	slices.SortFunc(up, func(a, b *instance) int {
		return cmp.Or(b.startedAt().Compare(a.startedAt()), cmp.Compare(key(a.ref), key(b.ref)))
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

// Undrain lets workloads be started again.
func (m *Manager) Undrain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = ""
}
