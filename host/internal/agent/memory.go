package agent

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

const (
	// gcPercent makes the collector run twice as often as by default. Most of the
	// agent's heap is a few large blocks without pointers, so that a run takes a
	// millisecond or two.
	gcPercent = 50
	// trimInterval is how soon memory goes back to the system after a burst, such as a
	// list of all volumes. By itself Go keeps it until the heap has grown to half as much
	// again, which on a quiet host takes minutes.
	trimInterval = 30 * time.Second
)

// tuneMemory keeps the agent small, unless the operator has said how (GOGC).
func (a *agent) tuneMemory(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		was := debug.SetGCPercent(gcPercent)
		a.closers.add(func() error { debug.SetGCPercent(was); return nil })
	}
	a.closers.loop(ctx, func(ctx context.Context) {
		tick := time.NewTicker(trimInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				debug.FreeOSMemory()
			}
		}
	})
	return nil
}
