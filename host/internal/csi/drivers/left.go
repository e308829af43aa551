package drivers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// A driver's process may leave children behind that serve mounts. They stay while the driver is in use, and usually end
// by themselves when their mount is gone.

func (i *instance) inUse() bool { return len(i.r.users(i.spec)) > 0 }

// keepLeft records that something may be left of a process of the driver, which has ended.
func (i *instance) keepLeft(ref process.Ref) {
	i.rec.Left = append(i.rec.Left, ref)
	i.showLeft()
	if pids := process.Left(ref); len(pids) > 0 {
		i.event("left", fmt.Sprintf("processes %v of process %d stay: they may serve mounts", pids, ref.PID), nil)
	}
}

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

// showLeft forgets what is gone, and shows what is not.
func (i *instance) showLeft() {
	var pids []int
	before := len(i.rec.Left)
	i.rec.Left = slices.DeleteFunc(i.rec.Left, func(ref process.Ref) bool {
		left := process.Left(ref)
		pids = append(pids, left...)
		return len(left) == 0
	})
	if len(i.rec.Left) != before {
		if err := i.save(); err != nil {
			i.log.Error("what is left of earlier processes could not be recorded", "error", err)
		}
	}
	i.update(func(d *Driver) { d.Left = pids })
}

// endLeft stops what is left of earlier processes, which is not in use.
func (i *instance) endLeft(ctx context.Context) error {
	if len(i.rec.Left) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
	defer cancel()
	var errs []error
	i.rec.Left = slices.DeleteFunc(i.rec.Left, func(ref process.Ref) bool {
		err := process.Clean(ctx, ref)
		errs = append(errs, err)
		return err == nil
	})
	errs = append(errs, i.save())
	i.showLeft()
	return errors.Join(errs...)
}

// watchAndTend is watch for a driver without a process of its own, which may have had one.
func (i *instance) watchAndTend(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { i.watch(ctx) })
	for sleep(ctx, i.r.timing.tendEvery) {
		i.tend(ctx)
	}
}
