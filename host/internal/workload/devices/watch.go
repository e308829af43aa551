package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pannier/pannier/sdk/device"
)

// Run follows all device plugins until ctx ends.
func (r *Registry) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	watched := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range watched {
			stop()
		}
	}()
	var names, pending []string
	for {
		var err error
		if names, pending, err = r.plugins.AwaitDevicePlugins(ctx, names, pending); err != nil {
			return // the host is stopping
		}
		for name, stop := range watched {
			if !slices.Contains(names, name) {
				stop()
				delete(watched, name)
			}
		}
		r.list(names, pending) // before any of them reports
		for _, name := range names {
			if watched[name] == nil {
				watching, stop := context.WithCancel(ctx)
				watched[name] = stop
				running.Go(func() { r.watch(watching, name) })
			}
		}
	}
}

// list updates the list of plugins.
func (r *Registry) list(names, pending []string) {
	r.change(func() {
		r.listed, r.pending = true, pending
		for _, name := range names {
			if r.told[name] == nil {
				r.told[name] = &told{}
			}
		}
		maps.DeleteFunc(r.told, func(name string, _ *told) bool { return !slices.Contains(names, name) })
	})
}

// watch keeps a fingerprint stream of a plugin open until ctx ends, with one process after the other.
func (r *Registry) watch(ctx context.Context, plugin string) {
	pause := &backoff.ExponentialBackOff{
		InitialInterval: r.timing.retryMin, MaxInterval: r.timing.retryMax, Multiplier: 2,
		RandomizationFactor: 0.3,
	}
	last := time.Now() // when the plugin last reported
	for {
		heard, err := r.fingerprint(ctx, plugin)
		if ctx.Err() != nil {
			return
		}
		if heard {
			last = time.Now()
			pause.Reset()
		}
		if time.Since(last) >= r.timing.stand || errors.Is(err, errWrong) {
			r.away(plugin, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

var (
	// errSilent means that the plugin runs but has reported nothing.
	errSilent = errors.New("it has not reported its devices")
	errWrong  = errors.New("its report of its devices is invalid")
)

// fingerprint runs one stream with one process of the plugin. heard reports whether anything was reported.
func (r *Registry) fingerprint(ctx context.Context, plugin string) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(r.timing.stand, func() { cancel(errSilent) })
	defer silent.Stop()
	client, release, err := r.plugins.Device(ctx, plugin)
	if err != nil {
		return false, err
	}
	defer release()
	err = client.Fingerprint(ctx, func(groups []device.Group) error {
		if err := device.ValidateGroups(groups); err != nil {
			return fmt.Errorf("%w: %w", errWrong, err)
		}
		silent.Stop()
		heard = true
		r.report(ctx, plugin, groups)
		return nil
	})
	if errors.Is(context.Cause(ctx), errSilent) {
		err = errSilent
	}
	return heard, err
}

// errReported ends a stream after its first report.
var errReported = errors.New("reported")

// CheckCompatible checks that another process of a plugin has the devices that workloads hold and that the plugin
// reports now. The error names the first one that it has not.
func (r *Registry) CheckCompatible(ctx context.Context, plugin string, client device.Client) error {
	var reported []device.Group
	err := client.Fingerprint(ctx, func(groups []device.Group) error {
		reported = groups
		return errReported
	})
	if !errors.Is(err, errReported) {
		return err
	}
	if err := device.ValidateGroups(reported); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.groups() {
		for _, d := range g.Devices {
			if g.Plugin == plugin && d.Holder.ID != "" && !has(reported, d.ID) {
				return fmt.Errorf("it has no device %s/%s, which workload %s holds: stop that first", g, d.ID, d.Holder)
			}
		}
	}
	return nil
}

func has(groups []device.Group, id string) bool {
	return slices.ContainsFunc(groups, func(g device.Group) bool {
		return slices.ContainsFunc(g.Devices, func(d device.Instance) bool { return d.ID == id })
	})
}

// report stores a plugin's report. Reports of plugins that are not watched any more are ignored, and so are
// unchanged ones.
func (r *Registry) report(ctx context.Context, plugin string, groups []device.Group) {
	r.mu.Lock()
	t := r.told[plugin]
	again := t != nil && t.once && t.away == "" && reflect.DeepEqual(t.groups, groups)
	r.mu.Unlock()
	if again {
		return
	}
	r.change(func() {
		if ctx.Err() == nil && r.told[plugin] != nil {
			r.told[plugin] = &told{groups: groups, once: true}
		}
	})
}

// away marks a plugin's report as not valid any more.
func (r *Registry) away(plugin string, why error) {
	text := fmt.Sprintf("plugin %q cannot be reached: %v", plugin, why)
	r.change(func() {
		t := r.told[plugin]
		if t == nil || t.away == text {
			return
		}
		if t.away == "" {
			r.log.Warn("a device plugin does not report its devices; they are allocated to no workload", "plugin", plugin,
				"error", why)
		}
		r.told[plugin] = &told{groups: t.groups, once: t.once, away: text}
	})
}
