package drivers

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Suspend stops the processes of the drivers that the host runs and that can mount, types
// node and monolith, until Resume: why says so in each one's Message. Controllers go on, for other
// nodes. While volumes are mounted through one of them that is ErrInUse, and none is
// stopped. It may be repeated.
func (r *Registry) Suspend(ctx context.Context, why string) error {
	release, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("stop the drivers: %w", err)
	}
	defer release()
	var own []*instance
	for _, i := range r.all() {
		if len(i.spec.Command) == 0 || i.spec.Type == TypeController || i.retired || i.suspended {
			continue
		}
		if users := r.cfg.InUse(i.spec.ID); len(users) > 0 {
			return fmt.Errorf("stop driver %q: %w: by %s", i.spec.ID, ErrInUse, strings.Join(users, ", "))
		}
		own = append(own, i)
	}
	var errs []error
	for _, i := range own {
		if err := i.end(true); err != nil {
			// It is attended again, and stopped by the next attempt.
			errs = append(errs, fmt.Errorf("stop driver %q: %w", i.spec.ID, err))
			r.add(newInstance(r, i.rec))
			continue
		}
		i.suspended = true
		i.update(func(d *Driver) { d.PID = 0 })
		i.unhealthy(why)
	}
	return errors.Join(errs...)
}

// Resume starts again what Suspend has stopped. It may be repeated.
func (r *Registry) Resume(ctx context.Context) error {
	release, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("start the drivers again: %w", err)
	}
	defer release()
	for _, i := range r.all() {
		if i.suspended {
			r.add(newInstance(r, i.rec))
		}
	}
	return nil
}

func (r *Registry) all() []*instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*instance, 0, len(r.instances))
	for _, i := range r.instances {
		all = append(all, i)
	}
	return all
}
