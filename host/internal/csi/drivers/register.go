package drivers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Register adds a driver that is already running, or replaces the spec of one that was registered before. It
// is kept across restarts of the host until it is deregistered or stops. A controller is registered beside the node
// service of the same id, if there is one.
//
// Register waits, up to the health timeout, for the driver's first healthy report, and returns its state. A driver that
// is unhealthy is registered nevertheless, and its Message explains why. ErrInvalid, ErrDeclared and ErrInUse (a new
// container path while volumes are mounted through the driver) change nothing. If ctx ends first, the driver stays
// registered, and its state is returned with ctx's error.
func (r *Registry) Register(ctx context.Context, spec Spec) (Driver, error) {
	spec.Source, spec.Apart = SourceRegistered, spec.Type == TypeController
	spec = spec.withDefaults(r.cfg.DataDir)
	if err := r.check(spec); err != nil {
		return Driver{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := r.replace(ctx, spec); err != nil {
		return Driver{}, err
	}
	return r.firstAnswer(ctx, spec)
}

// replace puts an instance with the spec in the place of the previous one.
func (r *Registry) replace(ctx context.Context, spec Spec) error {
	release, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("register driver %q: %w", spec.ID, err)
	}
	defer release()
	before := r.instance(spec.key())
	if err := r.mayRegister(spec, before); err != nil {
		return err
	}
	if before != nil && sameSpec(before.spec, spec) {
		return nil
	}
	how := "registered at run time"
	if before != nil && before.spec.Source == SourceRegistered {
		how = "registered again with other settings"
	}
	if err := r.put(before, spec, how); err != nil {
		return err
	}
	return r.settle()
}

// put puts an instance with the spec in the place of another one, if there is one; r.changes is held.
func (r *Registry) put(before *instance, spec Spec, how string) error {
	if err := (record{Spec: spec}).save(r.cfg.DataDir); err != nil {
		return err
	}
	i, kind := newInstance(r, record{Spec: spec}), "registered"
	if before != nil {
		if err := before.end(errLeave); err != nil {
			return err
		}
		kind = "updated"
	}
	i.event(kind, how+", at "+spec.Endpoint, nil)
	r.add(i)
	return nil
}

func sameSpec(a, b Spec) bool {
	return a.Source == b.Source && a.Type == b.Type && a.Endpoint == b.Endpoint && a.Plugin == b.Plugin &&
		a.MountDir == b.MountDir && a.StagePublishBaseDir == b.StagePublishBaseDir && a.HealthTimeout == b.HealthTimeout
}

// mayRegister refuses to replace a driver of the configuration, to reuse another driver's socket,
// and to change container paths while volumes are mounted.
func (r *Registry) mayRegister(spec Spec, before *instance) error {
	if before != nil && before.spec.Source == SourceConfig {
		return fmt.Errorf("register driver %q: %w: change its csi_driver block instead", spec.ID, ErrDeclared)
	}
	for _, other := range r.each() {
		if other.key() == spec.key() {
			continue
		}
		if other.socket() == spec.socket() {
			return fmt.Errorf("%w: driver %q: endpoint %q is that of driver %q", ErrInvalid, spec.key(), spec.Endpoint, other.key())
		}
		if other.ID == spec.ID && other.Type != TypeNode && spec.Type != TypeNode {
			return fmt.Errorf("%w: driver %q is here as %s already, so its controller would be there twice: deregister that "+
				"first, or write type = \"node\" in its csi_driver block", ErrInvalid, spec.ID, other.Type)
		}
	}
	if before == nil || before.spec.MountDir == spec.MountDir &&
		before.spec.StagePublishBaseDir == spec.StagePublishBaseDir {
		return nil
	}
	if users := r.users(spec); len(users) > 0 {
		return fmt.Errorf("register driver %q with other container paths: %w: release %s first", spec.ID, ErrInUse,
			strings.Join(users, ", "))
	}
	return nil
}

// firstAnswer waits until the driver is healthy or its health timeout has passed.
func (r *Registry) firstAnswer(ctx context.Context, spec Spec) (Driver, error) {
	wait, cancel := context.WithTimeout(ctx, spec.HealthTimeout)
	defer cancel()
	for {
		changed := r.Changed()
		i := r.instance(spec.key())
		if i == nil {
			return Driver{}, fmt.Errorf("driver %q was deregistered meanwhile", spec.key())
		}
		d := i.snapshot()
		if d.Healthy {
			return d, nil
		}
		select {
		case <-changed:
		case <-wait.Done():
			if ctx.Err() != nil {
				return d, fmt.Errorf("driver %q is there, but has not answered yet: %w", spec.ID, context.Cause(ctx))
			}
			return d, nil
		}
	}
}

// Deregister removes a driver that was registered at run time, or is gone from the configuration: what of it has the
// type part, or all if that is empty. The process of the former is not the host's and keeps running; that of the latter
// is stopped. While volumes are mounted through the driver it fails with ErrInUse, unless force is set: then its
// children that serve mounts are stopped as well, and the volumes can be released only by force
// (workload.Manager.Stop), or after the driver is registered again.
func (r *Registry) Deregister(ctx context.Context, id string, part Type, force bool) error {
	release, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("deregister driver %q: %w", id, err)
	}
	defer release()
	parts, err := r.parts(id, part)
	if err != nil {
		return err
	}
	for _, i := range parts {
		if !i.retired && r.brings(i.spec.Plugin, id) && i.spec.Source == SourcePlugin {
			return fmt.Errorf("deregister driver %q: %w: change the configuration of plugin %q, or remove the plugin", id,
				ErrBrought, i.spec.Plugin)
		}
	}
	parts = slices.DeleteFunc(parts, func(i *instance) bool { return i.spec.Source == SourceConfig && !i.retired })
	if len(parts) == 0 {
		return fmt.Errorf("deregister driver %q: %w: remove its csi_driver block and restart the agent", id, ErrDeclared)
	}
	for _, i := range parts { // the node service first: it may be in use
		if err := r.deregister(i, force); err != nil {
			return err
		}
	}
	return nil
}

// deregister removes one instance; r.changes is held.
func (r *Registry) deregister(i *instance, force bool) error {
	id := i.spec.ID
	message, cause := "deregistered by request", errLeave // the process is not the host's
	if i.retired {
		cause = errStop
	}
	if users := r.users(i.spec); len(users) > 0 {
		if !force {
			return fmt.Errorf("deregister driver %q: %w: release %s first, or force it", id, ErrInUse, strings.Join(users, ", "))
		}
		message = "deregistered by force, although in use by " + strings.Join(users, ", ")
		if i.retired {
			cause = errForced
		}
	}
	if err := i.end(cause); err != nil {
		return err
	}
	return r.drop(i, message)
}

// Log returns the path of the file that a driver's processes print to: of the type part, or of the first if that is
// empty. Errors: ErrNotFound; ErrNotRun.
func (r *Registry) Log(id string, part Type) (string, error) {
	parts, err := r.parts(id, part)
	if err != nil {
		return "", err
	}
	if len(parts[0].spec.Command) == 0 {
		return "", fmt.Errorf("%w: %q has no command, so its output is where it runs", ErrNotRun, id)
	}
	return parts[0].logPath(), nil
}

// drop removes an instance that has ended, with its files; r.changes is held.
func (r *Registry) drop(i *instance, message string) error {
	err := forget(r.cfg.DataDir, i.spec.key())
	if len(i.spec.Command) > 0 && i.endpoint().leadsTo() != "" {
		err = errors.Join(err, os.Remove(i.spec.socket()))
	}
	r.remove(i)
	i.event("deregistered", message, nil)
	return errors.Join(err, r.settle())
}

func (r *Registry) instance(key string) *instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.instances[key]
}
