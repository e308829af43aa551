package drivers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The controller of a driver may be another process than its node service. It is an instance of its own then, with its
// record, process and health.

// key identifies the instance of a driver, or of its controller apart. An id holds no '/'.
func (s Spec) key() string {
	if s.Apart {
		return apart(s.ID)
	}
	return s.ID
}

// apart is the key of the controller apart of a driver.
func apart(id string) string { return id + "/controller" }

// ForController returns the driver as calls to its controller need it: with the controller's endpoint and health.
func (d Driver) ForController() Driver {
	if c := d.Controller; c != nil {
		d.Endpoint, d.Healthy, d.Message = c.Endpoint, c.Healthy, c.Message
	}
	return d
}

// foreign returns why the controller apart is another driver's than the node service; empty: it is not, or not both
// have reported yet.
func (d Driver) foreign() string {
	if d.Controller == nil || d.Controller.Fingerprint.Provider == "" || d.Fingerprint.Provider == "" ||
		d.Controller.Fingerprint.Provider == d.Fingerprint.Provider {
		return ""
	}
	return fmt.Sprintf("the controller at %s calls itself %q, and the node service at %s %q: they must be of one driver",
		d.Controller.Endpoint, d.Controller.Fingerprint.Provider, d.Endpoint, d.Fingerprint.Provider)
}

// users names what is mounted through the driver. A controller apart mounts nothing.
func (r *Registry) users(s Spec) []string {
	if s.Apart {
		return nil
	}
	return r.cfg.InUse(s.ID)
}

// joined returns what the instances of a driver know; r.mu is held.
func (r *Registry) joined(id string) (Driver, bool) {
	own, controller := r.instances[id], r.instances[apart(id)]
	switch {
	case own == nil && controller == nil:
		return Driver{}, false
	case own == nil:
		return controller.driver, true
	case controller == nil || controller.retired:
		return own.driver, true
	}
	d, c := own.driver, controller.driver
	d.Controller = &c
	if why := d.foreign(); why != "" {
		c.Healthy, c.Message = false, why
	}
	d.Fingerprint.Controller = c.Fingerprint.Controller
	return d, true
}

// ids returns the ids of all drivers, sorted; r.mu is held.
func (r *Registry) ids() []string {
	var ids []string
	for _, i := range r.instances {
		ids = append(ids, i.spec.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// each returns what each instance knows by itself, by key.
func (r *Registry) each() []Driver {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Driver
	for _, key := range slices.Sorted(maps.Keys(r.instances)) {
		all = append(all, r.instances[key].driver)
	}
	return all
}

// parts returns the instances of a driver that have a type, all for an empty one: its node service first.
func (r *Registry) parts(id string, part Type) ([]*instance, error) {
	if _, err := r.Get(id); err != nil {
		return nil, err
	}
	var parts []*instance
	var types []string
	for _, key := range []string{id, apart(id)} {
		i := r.instance(key)
		if i == nil {
			continue
		}
		types = append(types, string(i.spec.Type))
		if part == "" || part == i.spec.Type {
			parts = append(parts, i)
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("driver %q: its process of the type %q %w; it has %s", id, part, ErrNotFound,
			strings.Join(types, " and "))
	}
	return parts, nil
}
