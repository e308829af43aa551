package devices

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrTooFew means that this node has too few of the requested devices, or too few that are free and healthy. The
// message lists who has them.
var ErrTooFew = errcode.FailedPrecondition.New("too few devices")

// Request asks for devices of a group.
type Request struct {
	Name  string // TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME
	Count int    // above 0
}

// Given is a device that a workload has.
type Given struct {
	Ref
	Request string `json:"request"` // the name in the request
	Group   string `json:"group"`   // VENDOR/TYPE/NAME
}

// matches reports whether a name selects a group.
func matches(name string, g Group) bool {
	switch parts := strings.SplitN(name, "/", 3); len(parts) {
	case 1:
		return g.Type == parts[0]
	case 2:
		return g.Vendor == parts[0] && g.Type == parts[1]
	default:
		return g.Vendor == parts[0] && g.Type == parts[1] && g.Name == parts[2]
	}
}

// Pick allocates free and healthy devices to a workload for all requests, or none. While a plugin has not reported
// its devices yet, as after a start of the host, Pick waits for it until ctx ends if its devices may be needed.
// The error is ErrTooFew.
func (r *Registry) Pick(ctx context.Context, holder claim.WorkloadRef, want []Request) ([]Given, error) {
	for {
		r.mu.Lock()
		given, err := r.choose(holder.Namespace, want)
		if err == nil && len(given) > 0 {
			r.hold(holder, given)
			r.changed.Notify()
		}
		waitsFor, changed := r.waitsFor(), r.changed.Wait()
		r.mu.Unlock()
		if err == nil || len(waitsFor) == 0 {
			return given, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, withUnknown(err, waitsFor)
		}
	}
}

// Check explains why Pick would fail or wait now for a workload of a namespace: ErrTooFew. It takes nothing.
func (r *Registry) Check(namespace string, want []Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.choose(namespace, want)
	if waitsFor := r.waitsFor(); err != nil && len(waitsFor) > 0 {
		return withUnknown(err, waitsFor)
	}
	return err
}

func withUnknown(err error, waitsFor []string) error {
	return fmt.Errorf("%w; not known yet: the devices of %s", err, strings.Join(waitsFor, ", "))
}

// waitsFor names the plugins that may still report devices. The caller holds mu.
func (r *Registry) waitsFor() (out []string) {
	if !r.listed {
		return []string{"all plugins"}
	}
	for _, name := range r.pending {
		out = append(out, fmt.Sprintf("plugin %q", name))
	}
	for name, t := range r.told {
		if !t.once && t.away == "" {
			out = append(out, fmt.Sprintf("plugin %q", name))
		}
	}
	slices.Sort(out)
	return out
}

// choose returns free and healthy devices of those known now for all requests. The caller holds mu.
func (r *Registry) choose(namespace string, want []Request) (given []Given, err error) {
	// More specific requests choose first, so that all are served if possible.
	want = slices.Clone(want)
	slices.SortStableFunc(want, func(a,
		b Request,
	) int {
		return cmp.Compare(strings.Count(b.Name, "/"), strings.Count(a.Name, "/"))
	})
	groups := r.groups()
	taken := map[key]bool{}
	for _, req := range want {
		before := len(given)
		for _, g := range groups {
			if !matches(req.Name, g) {
				continue
			}
			for _, d := range g.Devices {
				known := keys(g.Plugin, g.String(), d.ID)
				if len(given)-before == req.Count || !d.Healthy || d.Holder != (claim.WorkloadRef{}) || taken[known[0]] {
					continue
				}
				taken[known[0]] = true
				given = append(given, Given{Ref: Ref{g.Plugin, d.ID}, Request: req.Name, Group: g.String()})
			}
		}
		if free := len(given) - before; free < req.Count {
			return nil, r.withSilent(tooFew(namespace, req, free, groups, given[:before]))
		}
	}
	return given, nil
}

// maxReasons bounds how many devices an error lists.
const maxReasons = 8

// tooFew explains, device by device, why a request cannot be satisfied.
func tooFew(namespace string, req Request, free int, groups []Group, earlier []Given) error {
	var reasons, names []string
	for _, g := range groups {
		names = append(names, g.String())
		if !matches(req.Name, g) {
			continue
		}
		for _, d := range g.Devices {
			switch {
			case d.Holder != (claim.WorkloadRef{}):
				reasons = append(reasons, fmt.Sprintf("%s %q is held by %s", g, d.ID, d.Holder.SeenFrom(namespace)))
			case !d.Healthy:
				reasons = append(reasons, fmt.Sprintf("%s %q is not healthy: %s", g, d.ID,
					cmp.Or(d.Message, "its plugin does not say why")))
			case slices.ContainsFunc(earlier, func(e Given) bool { return e.Group == g.String() && e.ID == d.ID }):
				reasons = append(reasons, fmt.Sprintf("%s %q is for this workload already", g, d.ID))
			}
		}
	}
	if more := len(reasons) - maxReasons; more > 0 {
		reasons = append(reasons[:maxReasons], fmt.Sprintf("and %d more; see: pannier device list", more))
	}
	why := strings.Join(reasons, "; ")
	if why == "" {
		why = "this node has no others"
		if free == 0 {
			why = "this node has none such; it has: " + cmp.Or(strings.Join(slices.Compact(names), ", "), "no devices at all")
		}
	}
	return fmt.Errorf("device %q: %w: %d asked for, %d free: %s", req.Name, ErrTooFew, req.Count, min(free, req.Count),
		why)
}

// withSilent adds to an error why plugins have reported no devices. The caller holds mu.
func (r *Registry) withSilent(err error) error {
	for _, plugin := range slices.Sorted(maps.Keys(r.told)) {
		if t := r.told[plugin]; !t.once && t.away != "" {
			err = fmt.Errorf("%w; %s", err, t.away)
		}
	}
	return err
}

// Hold records the devices that a workload had before a restart of the host.
func (r *Registry) Hold(holder claim.WorkloadRef, given []Given) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold(holder, given)
	r.changed.Notify()
}

// Free frees all devices of a workload. It does nothing if there are none.
func (r *Registry) Free(holder claim.WorkloadRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.holders, func(_ key, h claim.WorkloadRef) bool { return h == holder })
	r.changed.Notify()
}
