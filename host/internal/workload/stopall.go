package workload

import (
	"context"
	"errors"
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
