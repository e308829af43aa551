package drivers

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// crashLoop is how many times in a row a process must end soon after its start
// for that to be reported as a crash loop.
const crashLoop = 3

// supervise keeps the driver's process running until ctx ends, and leaves it
// running then: run decides what becomes of it.
func (i *instance) supervise(ctx context.Context) {
	restart := newBackoff(i.r.timing.restartMin, i.r.timing.restartMax)
	soon := 0 // how many times in a row it ended soon after its start
	settled := func() {
		soon = 0
		restart.Reset()
		i.update(func(d *Driver) { d.CrashLoop = false })
	}
	for {
		fresh, err := i.findOrStart(ctx)
		why := fmt.Sprintf("it cannot be started: %v", err)
		if err == nil {
			why = i.attend(ctx, fresh, settled)
		}
		if ctx.Err() != nil {
			return
		}
		soon++
		wait := restart.NextBackOff()
		i.ended(why, soon, wait)
		if !sleep(ctx, wait) {
			return
		}
	}
}

// attend follows the driver while its process runs, and says why it does not any
// more. settled is called when the process has proved to be stable. When ctx ends
// first, the process is left running, in i.proc.
func (i *instance) attend(ctx context.Context, fresh bool, settled func()) (why string) {
	if hopeless := i.observe(ctx, fresh, settled); hopeless {
		return i.giveUp(ctx)
	}
	if ctx.Err() != nil {
		return "the host stops"
	}
	why = fmt.Sprintf("its process %d ended: %s", i.proc.PID(), i.proc.Exit())
	i.bury(ctx)
	return why
}

// observe returns when the process has ended, when ctx has, or when the process,
// which is fresh, is hopeless: it runs, and was not healthy once within the
// driver's health timeout.
func (i *instance) observe(ctx context.Context, fresh bool, settled func()) (hopeless bool) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { i.watch(ctx) })
	wg.Go(func() { i.tailLog(ctx) })

	stable := time.NewTimer(i.r.timing.stable)
	defer stable.Stop()
	healthTimeout := time.NewTicker(i.spec.HealthTimeout)
	defer healthTimeout.Stop()
	for {
		select {
		case <-stable.C:
			settled()
		case <-healthTimeout.C:
			if i.late() && fresh {
				return true
			}
		case <-i.proc.Done():
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// late says that the process has not been healthy once, by the word of a storage
// plugin that could tell. One that was healthy is never ended for being slow:
// volumes are mounted through it.
func (i *instance) late() bool {
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	i.starting = false
	return i.answered && !i.wasHealthy
}

// giveUp ends a process that did not become healthy.
func (i *instance) giveUp(ctx context.Context) (why string) {
	i.r.mu.Lock()
	why = fmt.Sprintf("it was not healthy within %s: %s", i.spec.HealthTimeout, i.driver.Message)
	i.r.mu.Unlock()
	if err := i.stopProcess(ctx, why); err != nil {
		i.log.Error("the driver's process could not be stopped", "error", err)
	}
	return why
}

// bury cleans up after a process that ended by itself. What it leaves behind in
// its group may be a file system's daemon: that stays while a volume is mounted
// through the driver, and ends with the mount.
func (i *instance) bury(ctx context.Context) {
	if len(i.r.cfg.InUse(i.spec.ID)) > 0 {
		i.proc.Release()
	} else {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
		defer cancel()
		if err := i.proc.Stop(ctx); err != nil {
			i.log.Error("what the driver's process left behind could not be stopped", "error", err)
		}
	}
	i.proc, i.rec.Launch = nil, nil
}

// ended makes known that there is no process now, and when the next one starts.
func (i *instance) ended(why string, soon int, wait time.Duration) {
	next := fmt.Sprintf("%s; the next start is in %s", why, wait.Round(100*time.Millisecond))
	if soon >= crashLoop {
		next = fmt.Sprintf("crash loop, %d times in a row: %s", soon, next)
	}
	before, after := i.update(func(d *Driver) {
		d.PID, d.CrashLoop = 0, soon >= crashLoop
		d.Healthy, d.checked = false, true
		i.state = next
	})
	if before.PID != 0 {
		i.event("exited", why, map[string]string{"pid": strconv.Itoa(before.PID), "next_start_in": wait.String()})
	} else {
		i.event("failed", why, map[string]string{"next_start_in": wait.String()})
	}
	if before.Healthy || !before.checked {
		i.event("unhealthy", after.Message, nil)
	}
	if after.CrashLoop && !before.CrashLoop {
		i.event("crash-loop", after.Message, map[string]string{"times": strconv.Itoa(soon)})
	}
}

// tailLog writes what the process prints into the host's log, under the driver's id.
func (i *instance) tailLog(ctx context.Context) {
	if err := process.Tail(ctx, i.logPath(), i.log); err != nil {
		i.log.Warn("the driver's output is not logged any more", "error", err)
	}
}
