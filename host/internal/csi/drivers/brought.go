package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/storage"
)

const (
	// maxBrought is how many drivers a plugin may bring.
	maxBrought = 100
	// maxBroughtEndpoint is how many bytes the endpoint of one may have.
	maxBroughtEndpoint = 1024
)

// told is what a storage plugin has last said of the drivers that it brings.
type told struct {
	drivers []storage.Driver
	surplus string   // says that there were more; empty: there were not
	unused  []string // why some of them are not used
}

// Bring takes over the drivers that a storage plugin brings itself, in the place of the ones that it brought before. A
// csi_driver block and a registration of the same id come first, and so does a plugin that brought the id before: what
// is not used for that or another reason is an event and in Unused, and is taken in as soon as the reason is gone. A
// driver that is not among them any more is removed when it is not in use. They stay known until Bring is called again,
// under the next host too.
func (r *Registry) Bring(ctx context.Context, plugin string, all []storage.Driver) error {
	release, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("take over the drivers of plugin %q: %w", plugin, err)
	}
	defer release()
	t := told{drivers: slices.Clone(all[:min(len(all), maxBrought)]), unused: r.Unused(plugin)}
	if len(all) > maxBrought {
		t.surplus = fmt.Sprintf("it brings %d drivers, and those after the first %d are not used", len(all), maxBrought)
	}
	r.mu.Lock()
	r.told[plugin] = t
	r.mu.Unlock()
	return r.settle()
}

// Unused lists the drivers that a plugin brings and that are not used, each with the reason.
func (r *Registry) Unused(plugin string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told[plugin].unused
}

// brings reports whether a plugin brings a driver now.
func (r *Registry) brings(plugin, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.told[plugin].drivers, func(d storage.Driver) bool { return d.ID == id })
}

// settle makes the drivers that plugins bring what they told, as far as the other drivers let it; r.changes is held.
func (r *Registry) settle() error {
	var errs []error
	r.mu.Lock()
	all := maps.Clone(r.told)
	r.mu.Unlock()
	for _, d := range r.each() {
		i := r.instance(d.key())
		if _, known := all[d.Plugin]; known && d.Source == SourcePlugin && !i.retired && !r.brings(d.Plugin, d.ID) {
			_, err := r.retire(i)
			errs = append(errs, err)
		}
	}
	for _, plugin := range slices.Sorted(maps.Keys(all)) {
		t := all[plugin]
		var unused []string
		for n, d := range t.drivers {
			why := "it is brought twice"
			if !slices.ContainsFunc(t.drivers[:n], func(b storage.Driver) bool { return b.ID == d.ID }) {
				var err error
				why, err = r.bring(plugin, d)
				errs = append(errs, err)
			}
			if why != "" {
				unused = append(unused, fmt.Sprintf("its driver %.64q is not used: %s", d.ID, why))
			}
		}
		if t.surplus != "" {
			unused = append(unused, t.surplus)
		}
		for _, message := range unused {
			if !slices.Contains(t.unused, message) {
				r.cfg.Events.Publish(events.Event{
					Topic: events.TopicPlugin, Type: "driver-unused", Subject: plugin, Message: message,
				})
			}
		}
		t.unused = unused
		r.mu.Lock()
		r.told[plugin] = t
		r.changed.Notify()
		r.mu.Unlock()
	}
	return errors.Join(errs...)
}

// bring takes in one driver that a plugin brings, or explains why it is not used; r.changes is held.
func (r *Registry) bring(plugin string, d storage.Driver) (why string, err error) {
	spec := Spec{ID: d.ID, Endpoint: d.Endpoint, Plugin: plugin, Source: SourcePlugin}.withDefaults(r.cfg.DataDir)
	if wrong := spec.Validate(); wrong != nil {
		return wrong.Error(), nil //nolint:nilerr // it is the answer
	}
	before := r.instance(spec.key())
	switch {
	case r.instance(apart(d.ID)) != nil:
		return fmt.Sprintf("a controller is registered as %q: run \"pannier driver deregister %s\" to use the plugin's", d.ID,
			d.ID), nil
	case before == nil:
	case before.spec.Source == SourceConfig && before.retired:
		return "the one that was declared is kept until it is not in use", nil
	case before.spec.Source == SourceConfig:
		return "the csi_driver block of that id comes first: take that out of the configuration to use the plugin's", nil
	case before.spec.Source == SourceRegistered:
		return fmt.Sprintf("a driver is registered as %q: run \"pannier driver deregister %s\" to use the plugin's", d.ID,
			d.ID), nil
	case before.spec.Plugin != plugin && (!before.retired || len(r.users(spec)) > 0):
		return fmt.Sprintf("plugin %q has brought it first: give one of them another id", before.spec.Plugin), nil
	case sameSpec(before.spec, spec) && !before.retired:
		return "", nil
	}
	return "", r.put(before, spec, fmt.Sprintf("plugin %q brings it", plugin))
}
