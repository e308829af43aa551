package drivers

import (
	"context"
	"sync"
	"time"
)

// A driver's process may leave children behind that serve mounts. They stay while the driver is in use, and usually end
// by themselves when their mount is gone.

func (i *instance) inUse() bool { return len(i.r.users(i.spec)) > 0 }

// tend forgets what earlier processes had left and is gone, and ends what is still there some time after the driver
// was last in use.
func (i *instance) tend(ctx context.Context) {
	if len(i.rec.Left) == 0 {
		return
	}
	i.showLeft()
	switch {
	case i.inUse():
		i.unusedSince = time.Time{}
	case i.unusedSince.IsZero():
		i.unusedSince = time.Now()
	case time.Since(i.unusedSince) >= i.r.timing.leftGrace:
		if err := i.endLeft(ctx); err != nil {
			i.log.Error("what an earlier process of the driver left behind could not be stopped", "error", err)
		}
	}
}

// endLeft stops what is left of earlier processes.
func (i *instance) endLeft(ctx context.Context) error {
	err := i.procs.ClearLeft(ctx)
	i.showLeft()
	return err
}

// showLeft forgets what is gone, and shows what is not.
func (i *instance) showLeft() {
	pids, err := i.procs.Left()
	if err != nil {
		i.log.Error("what is left of earlier processes could not be recorded", "error", err)
	}
	i.update(func(d *Driver) { d.Left = pids })
}

// watchAndTend is watch for a driver without a process of its own, which may have had one.
func (i *instance) watchAndTend(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { watcher{i}.watch(ctx) })
	for sleep(ctx, i.r.timing.tendEvery) {
		i.tend(ctx)
	}
}
