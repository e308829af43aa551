package drivers

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// leaver removes an instance that is not needed any more.
type leaver struct {
	*instance
	goneSince time.Time // since when nothing listens on the driver's socket; zero: something does
}

// run removes the driver when it is no longer needed: a registered one that has stopped, and a
// declared one that is gone from the configuration. It is kept, with a message, while volumes are
// mounted through it.
func (i *leaver) run(ctx context.Context) {
	for {
		if why := i.reason(); why == "" {
			i.keep("")
		} else if users := i.r.users(i.spec); len(users) > 0 && !i.unused {
			i.keep(why + "; it is kept because it is in use by " + strings.Join(users, ", "))
		} else if i.try(ctx, why) {
			return
		}
		if !sleep(ctx, min(i.r.timing.leaveEvery, i.spec.HealthTimeout/4)) {
			return
		}
	}
}

// reason returns why the driver should be removed, or "".
func (i *leaver) reason() string {
	i.r.mu.Lock()
	healthy := i.driver.Healthy
	i.known = i.known || i.wasHealthy // it may have stopped again since the last look
	i.r.mu.Unlock()
	if i.retired && i.spec.Source == SourcePlugin {
		return fmt.Sprintf("plugin %q does not bring it any more", i.spec.Plugin)
	}
	if i.retired {
		return "it is not in the configuration any more"
	}
	if healthy || !gone(i.spec.socket()) {
		i.goneSince, i.known = time.Time{}, true
		return ""
	}
	if !i.known {
		return ""
	}
	if i.goneSince.IsZero() {
		i.goneSince = time.Now()
	}
	if since := time.Since(i.goneSince); since >= i.spec.HealthTimeout {
		return fmt.Sprintf("nobody has listened on %s for %s", i.spec.socket(), since.Round(time.Second/10))
	}
	return ""
}

// keep sets or clears the reason why the driver is still here.
func (i *leaver) keep(why string) {
	var first bool
	i.update(func(*Driver) {
		first = i.note == "" && why != ""
		i.note = why
	})
	if first {
		i.event("kept", why, nil)
	}
}

// try deregisters the driver. It gives up if the instance is ended by another call first.
func (i *leaver) try(ctx context.Context, why string) bool {
	release, err := i.r.lock(ctx)
	if err != nil {
		return true
	}
	defer release()
	if ctx.Err() != nil {
		return true
	}
	i.endRun(errStop)
	if i.err != nil {
		// The record stays, so that the next host finds the process and tries again.
		i.log.Error("the driver's process could not be stopped", "error", i.err)
		i.r.remove(i.instance)
		return true
	}
	if err := i.r.drop(i.instance, why); err != nil {
		i.log.Error("the driver will be back after a restart of the host", "error", err)
	}
	return true
}
