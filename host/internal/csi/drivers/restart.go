package drivers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Restart stops the process of a driver that the host runs and starts it again, with its present configuration and
// program: the processes of the type part, or all if that is empty. It waits, up to the health timeout, for the first
// healthy report.
//
// While the driver is in use it fails with ErrInUse, unless force is set. Children of the driver that serve mounts are
// not stopped (process.Process.StopKeepingMounts); mounts that its own process serves are lost. ErrNotRun: the host
// does not run it now. If ctx ends first, the driver is restarted nevertheless.
func (r *Registry) Restart(ctx context.Context, id string, part Type, force bool) error {
	specs, err := r.restart(ctx, id, part, force)
	if err != nil {
		return fmt.Errorf("restart driver %q: %w", id, err)
	}
	for _, spec := range specs {
		if _, err := r.firstAnswer(ctx, spec); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) restart(ctx context.Context, id string, part Type, force bool) (restarted []Spec, err error) {
	release, err := r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	parts, err := r.parts(id, part)
	if err != nil {
		return nil, err
	}
	all := len(parts)
	parts = slices.DeleteFunc(parts, func(i *instance) bool { return len(i.spec.Command) == 0 })
	if len(parts) == 0 {
		return nil, fmt.Errorf("%w: it has no command; restart it where it runs", ErrNotRun)
	}
	for _, i := range parts {
		if i.suspended {
			return nil, fmt.Errorf("%w: it is stopped: %s", ErrNotRun, i.snapshot().Message)
		}
		if users := r.users(i.spec); len(users) > 0 && !force {
			err := fmt.Errorf("%w by %s; with -force %s", ErrInUse, strings.Join(users, ", "), i.consequence())
			if all > 1 {
				err = fmt.Errorf("%w; -type controller restarts its controller alone", err)
			}
			return nil, err
		}
	}
	for _, i := range parts {
		users := r.users(i.spec)
		next := i.next(errRestart)
		if len(users) > 0 {
			next.event("restarted", "restarted by force, although in use by "+strings.Join(users, ", "), nil)
		}
		if i.err != nil {
			return nil, i.err
		}
		restarted = append(restarted, next.spec)
	}
	return restarted, nil
}

// consequence says, for people, what becomes of the mounts when the driver is restarted.
func (i *instance) consequence() string {
	if pid := i.snapshot().PID; pid != 0 && process.ServesMounts(pid) {
		return fmt.Sprintf("the file systems are lost that its process %d serves", pid)
	}
	return "it is restarted, and its children that serve file systems stay"
}

// next ends the instance and puts its successor in its place. r.changes is held. The caller may be i.apply.
func (i *instance) next(cause error) *instance {
	if i.endRun(cause); errors.Is(cause, errRestart) {
		i.rec.Refused = nil
	}
	n := i.successor()
	i.r.add(n)
	return n
}

// successor makes the next instance of a driver whose instance has ended: with the present configuration or, if the
// process could not be stopped (i.err), with that which it runs with.
func (i *instance) successor() *instance {
	rec, waiting := i.rec, i.waiting
	if i.err == nil && waiting != nil {
		rec.Spec, waiting = *waiting, nil
	}
	n := newInstance(i.r, rec)
	n.startedOnce, n.retired, n.known = i.startedOnce, i.retired, i.known
	n.driver.Restarts, n.driver.Retired = i.snapshot().Restarts, i.retired
	if waiting != nil {
		n.waiting, n.note, n.driver.Waiting = waiting, i.note, true
	}
	return n
}

func (i *instance) snapshot() Driver {
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	return i.driver
}

// wait makes a changed configuration wait. It is called before start.
func (i *instance) wait(spec Spec, changed []string) {
	i.waiting = &spec
	i.note = fmt.Sprintf("a changed configuration (%s) waits until it is not in use, or for: pannier driver restart -force %s",
		strings.Join(changed, ", "), spec.ID)
	i.driver.Waiting = true
	i.event("configuration-waits", i.note, nil)
}

// apply restarts the driver with the configuration that waits, once it is not in use or its process has ended.
func (i *instance) apply(ctx context.Context) {
	for i.inUse() {
		select {
		case <-ctx.Done():
			return
		case <-i.superseded:
			i.replace(ctx)
			return
		case <-time.After(i.r.timing.leaveEvery):
		}
	}
	i.replace(ctx)
}

// replace puts the next instance in the place of this one. It gives up if this one is ended by another call first.
func (i *instance) replace(ctx context.Context) {
	release, err := i.r.lock(ctx)
	if err != nil {
		return
	}
	defer release()
	if ctx.Err() != nil {
		return
	}
	if i.next(errChanged); i.err != nil {
		i.log.Error("the driver's process of the earlier configuration could not be stopped", "error", i.err)
	}
}
