package drivers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Check returns why a declared driver could not be started on this machine, without starting anything. Errors:
// ErrInvalid.
func (c Config) Check(spec Spec) error {
	r := New(c)
	specs, err := r.checkDeclared([]Spec{spec})
	if err != nil || len(spec.Command) == 0 {
		return err
	}
	spec = specs[0]
	_, unread := environment(spec, c.ReadSecret)
	if err := errors.Join(spec.checkProgram(), process.CheckUser(spec.User, ""), unread); err != nil {
		return fmt.Errorf("%w: driver %q: %w", ErrInvalid, spec.key(), err)
	}
	return nil
}

// Reload takes over other declared drivers. It returns those whose declaration differs from the present one, by id,
// with what that waits for: a driver in use keeps its process, and stays if it is not declared any more. Registered
// drivers stay. All mistakes are reported at once (ErrInvalid), before anything is changed.
func (r *Registry) Reload(ctx context.Context, declared []Spec) (map[string]string, error) {
	specs, err := r.checkDeclared(declared)
	if err != nil {
		return nil, err
	}
	release, err := r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	changed := map[string]string{}
	var errs []error
	here := map[string]bool{}
	for _, spec := range specs {
		here[spec.key()] = true
		if i := r.instance(spec.key()); i == nil || !reflect.DeepEqual(i.declared(), &spec) {
			waits, err := r.redeclare(i, spec)
			errs = append(errs, err)
			changed[spec.ID] = joinTexts(changed[spec.ID], waits)
		}
	}
	for _, d := range r.each() {
		i := r.instance(d.key())
		if i == nil || here[d.key()] || i.declared() == nil {
			continue
		}
		waits, err := r.retire(i)
		errs = append(errs, err)
		changed[d.ID] = joinTexts(changed[d.ID], waits)
	}
	errs = append(errs, r.settle())
	return changed, errors.Join(errs...)
}

func joinTexts(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), "; ")
}

// declared returns how the driver is declared; nil: it is not, or not any more.
func (i *instance) declared() *Spec {
	switch {
	case i.retired || i.spec.Source != SourceConfig:
		return nil
	case i.waiting != nil:
		return i.waiting
	default:
		return &i.spec
	}
}

// redeclare puts an instance that is declared so in the place of another one; nil: there is none. r.changes is held.
func (r *Registry) redeclare(before *instance, spec Spec) (waits string, err error) {
	if before == nil {
		i := newInstance(r, record{Spec: spec})
		if err := i.save(); err != nil {
			return "", err
		}
		r.add(i)
		return "", nil
	}
	if before.suspended {
		before.waiting, before.retired = &spec, false
		return before.snapshot().Message, nil
	}
	if err := before.end(errLeave); err != nil {
		return "", err
	}
	i := r.declare(before.rec, spec)
	i.follows(before)
	waits, err = i.note, i.save()
	r.add(i)
	return waits, err
}

// retire makes a driver that is not declared any more, or not brought by its plugin, leave as soon as it is not in use;
// r.changes is held.
func (r *Registry) retire(i *instance) (waits string, err error) {
	if i.suspended {
		i.retired = true
		return i.snapshot().Message, nil
	}
	if err := i.end(errLeave); err != nil {
		return "", err
	}
	next := r.undeclared(i.rec, true)
	next.follows(i)
	r.add(next)
	if users := r.users(i.spec); len(users) > 0 {
		return "it is kept because it is in use by " + strings.Join(users, ", "), nil
	}
	return "", nil
}

// follows takes over what is known of the driver from an instance that has ended. It stays healthy if the same process
// is reached in the same way.
func (i *instance) follows(before *instance) {
	was := before.snapshot()
	i.startedOnce, i.driver.Restarts = before.startedOnce, was.Restarts
	same := i.spec.Endpoint == was.Endpoint && i.spec.Plugin == was.Plugin && i.spec.Type == was.Type &&
		(i.waiting != nil || !i.rec.runsOtherwise(i.spec))
	if !same || !was.Healthy {
		return
	}
	i.driver.Healthy, i.driver.checked, i.driver.Fingerprint = true, true, was.Fingerprint
	i.driver.PID, i.driver.Started, i.driver.ChangedAt = was.PID, was.Started, was.ChangedAt
	i.driver.Left, i.driver.Message = slices.Clone(was.Left), i.note
	i.state = ""
}
