package drivers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"
)

// leave takes the driver away when its time has come: a registered one that has
// stopped, and a declared one that is gone from the configuration. While volumes
// are mounted through it, it is kept, and says so.
func (i *instance) leave(ctx context.Context) {
	var goneSince time.Time
	for {
		if why := i.reasonToLeave(&goneSince); why == "" {
			i.keep("")
		} else if users := i.r.cfg.InUse(i.spec.ID); len(users) > 0 && !i.unused {
			i.keep(why + "; it is kept because it is in use by " + strings.Join(users, ", "))
		} else if i.tryLeave(ctx, why) {
			return
		}
		if !sleep(ctx, min(i.r.timing.leaveEvery, i.spec.HealthTimeout/4)) {
			return
		}
	}
}

// reasonToLeave is empty while the driver may stay. goneSince remembers when the
// driver's socket was first seen to be gone.
func (i *instance) reasonToLeave(goneSince *time.Time) string {
	i.r.mu.Lock()
	healthy := i.driver.Healthy
	i.known = i.known || i.wasHealthy // it may have stopped again between two looks
	i.r.mu.Unlock()
	if i.retired {
		return "it is not in the configuration any more"
	}
	if healthy || !gone(i.spec.socket()) {
		*goneSince, i.known = time.Time{}, true
		return ""
	}
	if !i.known {
		return ""
	}
	if goneSince.IsZero() {
		*goneSince = time.Now()
	}
	if since := time.Since(*goneSince); since >= i.spec.HealthTimeout {
		return fmt.Sprintf("nobody has listened on %s for %s", i.spec.socket(), since.Round(time.Second/10))
	}
	return ""
}

// gone says whether nobody listens on the socket. A driver that listens and does
// not answer is unhealthy, not gone.
func gone(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// keep sets or clears the reason for which the driver is still here.
func (i *instance) keep(why string) {
	var first bool
	i.update(func(*Driver) {
		first = i.note == "" && why != ""
		i.note = why
	})
	if first {
		i.event("kept", why, nil)
	}
}

// tryLeave deregisters the driver. It gives up when someone else ends the
// instance first.
func (i *instance) tryLeave(ctx context.Context, why string) bool {
	release, err := i.r.lock(ctx)
	if err != nil {
		return true
	}
	defer release()
	if ctx.Err() != nil {
		return true
	}
	i.endRun(true)
	if i.err != nil {
		// The record stays, so that the next host finds the process and tries again.
		i.log.Error("the driver's process could not be stopped", "error", i.err)
		i.r.remove(i)
		return true
	}
	if err := i.r.drop(i, why); err != nil {
		i.log.Error("the driver will be back after a restart of the host", "error", err)
	}
	return true
}
