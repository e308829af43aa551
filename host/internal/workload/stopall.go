package workload

import (
	"context"
	"errors"
	"sync"
	"time"
)

// StopAll takes every workload of this node down, side by side, and waits for
// the timeout at most.
func (m *Manager) StopAll(timeout time.Duration, reason string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	all := m.all()
	errs := make([]error, len(all))
	var stops sync.WaitGroup
	for n, i := range all {
		stops.Go(func() { _, errs[n] = m.Stop(ctx, i.ref, reason, nil) })
	}
	stops.Wait()
	return errors.Join(errs...)
}
