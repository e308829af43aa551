// Package devices knows the devices of this node: their existence and health, from the device plugins'
// fingerprints, and which workload has which device.
//
// A plugin that is swapped or restarted reports nothing for a while, so its last report stays valid for some time.
// Allocations are kept in memory only. They are also in the workloads' records, from which Hold restores them
// before any device is allocated.
package devices

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/sdk/device"
)

// Plugins is the part of catalog.Catalog that the registry uses.
type Plugins interface {
	// AwaitDevicePlugins waits until the names of the device plugins differ from seen, or the names of plugins
	// that may turn out to be device plugins differ from unknown.
	AwaitDevicePlugins(ctx context.Context, seen, unknown []string) (names, pending []string, err error)
	// Device acquires a plugin until release is called.
	Device(ctx context.Context, name string) (client device.Client, release func(), err error)
	// DoDevice runs fn with a plugin, and again if its process ends during the call.
	DoDevice(ctx context.Context, name string, fn func(ctx context.Context, client device.Client) error) error
}

// Registry knows this node's devices. Run keeps it up to date.
type Registry struct {
	plugins Plugins
	events  *events.Bus
	log     hclog.Logger
	timing  timing

	mu      sync.Mutex
	told    map[string]*told // by plugin
	listed  bool             // the names of the plugins are known
	pending []string         // plugins that may turn out to have devices
	holders map[key]claim.WorkloadRef
	changed notify.Broadcast
}

// told is the last report of one plugin.
type told struct {
	groups []device.Group
	once   bool   // it has reported at least once
	away   string // why the report is not valid any more; empty: it is valid
}

type timing struct {
	// stand is how long a report stays valid while the plugin is unavailable, and how long its first report may
	// take.
	stand              time.Duration
	retryMin, retryMax time.Duration // the pause between two streams
	sample             time.Duration // timeout of one sample of statistics
}

var defaultTiming = timing{
	stand: 30 * time.Second, retryMin: 50 * time.Millisecond, retryMax: 2 * time.Second,
	sample: 5 * time.Second,
}

// New returns a registry of the plugins' devices.
func New(plugins Plugins, bus *events.Bus, log hclog.Logger) *Registry {
	return &Registry{
		plugins: plugins, events: bus, log: log, timing: defaultTiming,
		told: map[string]*told{}, holders: map[key]claim.WorkloadRef{},
	}
}

// Ref identifies one device of this node.
type Ref struct {
	Plugin string `json:"plugin"`
	ID     string `json:"id"`
}

func (r Ref) String() string { return r.Plugin + "/" + r.ID }

// key is one of the names by which a device is known: what it is (its group's VENDOR/TYPE/NAME and its id), and who
// reports it (the plugin and its id). A device is held if either is: two plugins may report the same device, and a
// plugin may give its group another name.
type key struct{ scope, id string }

func keys(plugin, group, id string) [2]key {
	return [2]key{{"group " + group, id}, {"plugin " + plugin, id}}
}

// holder returns who has a device; zero: nobody. The caller holds mu.
func (r *Registry) holder(plugin, group, id string) claim.WorkloadRef {
	for _, k := range keys(plugin, group, id) {
		if h, held := r.holders[k]; held {
			return h
		}
	}
	return claim.WorkloadRef{}
}

// hold records who has devices. The caller holds mu.
func (r *Registry) hold(holder claim.WorkloadRef, given []Given) {
	for _, g := range given {
		for _, k := range keys(g.Plugin, g.Group, g.ID) {
			r.holders[k] = holder
		}
	}
}

// Group is a set of identical devices of one plugin.
type Group struct {
	Plugin             string
	Vendor, Type, Name string
	Attributes         map[string]string
	Devices            []Device // by id
}

// String returns VENDOR/TYPE/NAME.
func (g Group) String() string { return g.Vendor + "/" + g.Type + "/" + g.Name }

// Device is the current state of one device.
type Device struct {
	ID       string
	Healthy  bool
	Message  string // why it is not healthy
	Locality string
	Holder   claim.WorkloadRef // zero: free
}

// List returns all devices, sorted by group and plugin.
func (r *Registry) List() []Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups()
}

// groups is List. The caller holds mu.
func (r *Registry) groups() (out []Group) {
	for plugin, t := range r.told {
		for _, g := range t.groups {
			group := Group{Plugin: plugin, Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: maps.Clone(g.Attributes)}
			for _, d := range g.Devices {
				now := Device{
					ID: d.ID, Healthy: d.Healthy && t.away == "", Message: d.Message, Locality: d.Locality,
					Holder: r.holder(plugin, group.String(), d.ID),
				}
				if t.away != "" {
					now.Message = t.away
				}
				group.Devices = append(group.Devices, now)
			}
			slices.SortFunc(group.Devices, func(a, b Device) int { return strings.Compare(a.ID, b.ID) })
			out = append(out, group)
		}
	}
	slices.SortFunc(out, func(a, b Group) int {
		return cmp.Or(strings.Compare(a.String(), b.String()), strings.Compare(a.Plugin, b.Plugin))
	})
	return out
}

// Changed returns a channel that is closed when the result of List next changes.
func (r *Registry) Changed() <-chan struct{} { return r.changed.Wait() }

// change runs do, and publishes an event for each device whose health it changed.
func (r *Registry) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.byRef()
	do()
	now := r.byRef()
	r.changed.Notify()
	for _, ref := range slices.SortedFunc(maps.Keys(now), compareRefs) {
		was, known := before[ref]
		is := now[ref]
		held := is.Holder != claim.WorkloadRef{}
		switch {
		case !is.Healthy && (was.Healthy || !known && held):
			r.event("unhealthy", ref, is, is.Message)
		case is.Healthy && known && !was.Healthy:
			r.event("healthy", ref, is, "")
		}
	}
	r.reportTwice(before, now)
	for _, ref := range slices.SortedFunc(maps.Keys(before), compareRefs) {
		if _, there := now[ref]; !there {
			r.event("gone", ref, before[ref], "its plugin does not report it any more")
		}
	}
}

// reportTwice publishes an event for each device that a second plugin reports now.
func (r *Registry) reportTwice(before, now map[Ref]grouped) {
	reporters := map[key]string{}
	for _, ref := range slices.SortedFunc(maps.Keys(now), compareRefs) {
		d := now[ref]
		k := key{d.group, ref.ID}
		first, twice := reporters[k]
		if !twice {
			reporters[k] = ref.Plugin
			continue
		}
		_, knew := before[Ref{first, ref.ID}]
		if was, known := before[ref]; !known || !knew || was.group != d.group {
			r.event("duplicate", ref, d, fmt.Sprintf("plugin %q reports the same device; one workload at a time gets it", first))
		}
	}
}

// grouped is a device with its group's name.
type grouped struct {
	Device
	group string
}

func (r *Registry) byRef() map[Ref]grouped {
	out := map[Ref]grouped{}
	for _, g := range r.groups() {
		for _, d := range g.Devices {
			out[Ref{g.Plugin, d.ID}] = grouped{d, g.String()}
		}
	}
	return out
}

func compareRefs(a, b Ref) int {
	return cmp.Or(strings.Compare(a.Plugin, b.Plugin), strings.Compare(a.ID, b.ID))
}

func (r *Registry) event(kind string, ref Ref, d grouped, why string) {
	details := map[string]string{"group": d.group}
	if d.Holder != (claim.WorkloadRef{}) {
		details["workload"] = d.Holder.String()
		why = strings.TrimPrefix(fmt.Sprintf("%s; workload %q has it and continues", why, d.Holder), "; ")
	}
	r.events.Publish(events.Event{
		Topic: events.TopicDevice, Type: kind, Subject: ref.String(), Message: why,
		Details: details,
	})
}
