// Package catalog turns the supervisor's plugins into typed clients, one value of Kind for each. A caller acquires a
// client, calls it and releases it; the process behind it may be replaced between two calls.
//
// Errors of a plugin get "kind(name): " in front of them once, here, and keep their gRPC code.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
)

// ErrAmbiguous means that several plugins are of the requested kind, and none of them is the preferred one.
var ErrAmbiguous = errors.New("several plugins of this kind")

// ErrWrongKind means that a plugin is of another kind, or of another version of it.
var ErrWrongKind = errors.New("the plugin is of another kind")

// Kind says how the plugins of one kind are chosen, called, and named in errors.
type Kind[T any] struct {
	name     string
	protocol string // with its version
	// preferred is the plugin that is used when there are several of the kind.
	preferred string
	client    func(grpc.ClientConnInterface) T
}

// The kinds. Each device plugin reports its own devices, so none is preferred.
var (
	storageKind  = Kind[storage.Client]{"storage", storage.Kind, "csi-bridge", storage.NewClient}
	deviceKind   = Kind[device.Client]{"device", device.Kind, "", device.NewClient}
	Identity     = Kind[identity.Identity]{"identity", identity.Kind, "sids", identity.NewClient}
	Registration = Kind[registration.Registration]{"registration", registration.Kind, "consul-services", registration.NewClient}
	Bootstrap    = Kind[bootstrap.Bootstrap]{"bootstrap", bootstrap.Kind, "envoy-bootstrap", bootstrap.NewClient}
)

// Supervisor is the part of supervisor.Supervisor that the catalog uses.
type Supervisor interface {
	Acquire(ctx context.Context, name string) (supervisor.Handle, error)
	AcquireCall(ctx context.Context, name string) (supervisor.Handle, error)
	Await(ctx context.Context, done func([]supervisor.Status) bool) error
}

// Catalog gives typed clients of plugins.
type Catalog struct{ plugins Supervisor }

// New returns a catalog of a supervisor's plugins.
func New(plugins Supervisor) *Catalog { return &Catalog{plugins: plugins} }

// Storage acquires the storage plugin of that name until release is called. An empty name is csi-bridge, or else the
// only plugin of that kind. While the plugin is not up, Storage waits until ctx ends; the error is then
// supervisor.ErrUnavailable, with the code Unavailable.
//
// A call without a deadline gets CallTimeout.
func (c *Catalog) Storage(ctx context.Context, name string) (client storage.Client, release func(), err error) {
	return acquire(ctx, c, storageKind, name, false)
}

// DoStorage runs fn with a storage plugin (see Storage), within the deadline of ctx or else CallTimeout. If the
// plugin's process ends during a call, or is replaced because such calls fail, or is a canary, fn is run again with the
// process that serves then: the calls of all kinds are idempotent.
func (c *Catalog) DoStorage(ctx context.Context, name string,
	fn func(ctx context.Context, client storage.Client) error,
) error {
	return Do(ctx, c, storageKind, name, fn)
}

// acquire acquires the plugin called name, or the one of the kind if that is empty; forCall, it may be a canary.
func acquire[T any](ctx context.Context, c *Catalog, k Kind[T], name string, forCall bool,
) (client T, release func(), err error) {
	if name == "" {
		if name, err = c.pick(ctx, k.protocol, k.preferred); err != nil {
			return client, nil, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	get := c.plugins.Acquire
	if forCall {
		get = c.plugins.AcquireCall
	}
	gen, err := get(ctx, name)
	if err != nil {
		return client, nil, fmt.Errorf("%s: %w", k.name, err)
	}
	if gen.Kind != k.protocol {
		gen.Release()
		return client, nil, fmt.Errorf("%s: plugin %q: %w: it is %s, and %s is needed", k.name, name, ErrWrongKind, gen.Kind,
			k.protocol)
	}
	prefix := k.name + "(" + name + ")"
	return k.client(&conn{
		ClientConnInterface: gen.Conn, prefix: prefix, retired: gen.Retired,
		ended: gen.Ended,
	}), gen.Release, nil
}

// Do is DoStorage for any kind; an empty name is the preferred plugin of that, or else the only one.
func Do[T any](ctx context.Context, c *Catalog, k Kind[T], name string,
	fn func(ctx context.Context, client T) error,
) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, CallTimeout)
		defer cancel()
	}
	for try := 1; ; try++ {
		client, release, err := acquire(ctx, c, k, name, try == 1)
		if err != nil {
			return err
		}
		err = fn(ctx, client)
		release()
		if !errors.Is(err, errEnded) || try == maxTries {
			return err
		}
	}
}

// maxTries bounds how often a call that ends the plugin each time is tried.
const maxTries = 4

// candidates returns the plugins that may be used where none is named: the preferred one if it exists, else all of the
// kind. A plugin's kind is known only once it has come up; unknown is true if one has not.
func candidates(all []supervisor.Status, kind, preferred string) (found []string, unknown bool) {
	for _, s := range all {
		switch {
		case s.DuplicateOf != "": // it never comes up
			continue
		case s.Name == preferred:
			return []string{preferred}, false
		case s.Kind == kind:
			found = append(found, s.Name)
		case s.Kind == "":
			unknown = true
		}
	}
	return found, unknown
}

// pick returns the name of the plugin of a kind: the preferred one if it exists, else the only one. It waits while a
// plugin that may be of the kind has not come up.
func (c *Catalog) pick(ctx context.Context, kind, preferred string) (name string, err error) {
	var all []supervisor.Status
	var found []string
	waitErr := c.plugins.Await(ctx, func(now []supervisor.Status) bool {
		var unknown bool
		all = now
		found, unknown = candidates(now, kind, preferred)
		return len(found) > 0 || !unknown
	})
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("%w: %s; name one of them %q, or write in the block which one it uses", ErrAmbiguous,
			strings.Join(found, ", "), preferred)
	case waitErr != nil:
		return "", fmt.Errorf("%w: no plugin of kind %s has come up: %w", supervisor.ErrUnavailable, kind, waitErr)
	default:
		return "", fmt.Errorf("%w: none of the %d plugins is of kind %s", supervisor.ErrUnknown, len(all), kind)
	}
}

// AwaitStorage waits until the storage plugins that serve differ from seen. It returns them with their generations. One
// of seen that is down is among them as it was, and one that was removed is not, also if it is waited for since then.
func (c *Catalog) AwaitStorage(ctx context.Context, seen map[string]uint64) (serving map[string]uint64, err error) {
	err = c.plugins.Await(ctx, func(all []supervisor.Status) bool {
		serving = map[string]uint64{}
		for _, s := range all {
			before, known := seen[s.Name]
			switch {
			case s.Kind == storage.Kind && s.State == supervisor.Running:
				serving[s.Name] = s.Generation
			case known && s.Kind == storage.Kind:
				serving[s.Name] = before
			}
		}
		return !maps.Equal(serving, seen)
	})
	return serving, err
}

// AwaitDevicePlugins waits until the names of the device plugins differ from seen, or the names of the plugins
// that have not come up yet (any of which may be of that kind) differ from unknown. It returns both lists, sorted.
func (c *Catalog) AwaitDevicePlugins(ctx context.Context, seen, unknown []string) (names, pending []string, err error) {
	err = c.plugins.Await(ctx, func(all []supervisor.Status) bool {
		names, pending = nil, nil
		for _, s := range all {
			switch {
			case s.DuplicateOf != "": // it never comes up
			case s.Kind == device.Kind:
				names = append(names, s.Name)
			case s.Kind == "":
				pending = append(pending, s.Name)
			}
		}
		slices.Sort(names)
		slices.Sort(pending)
		return !slices.Equal(names, seen) || !slices.Equal(pending, unknown)
	})
	return names, pending, err
}

// Device acquires a device plugin until release is called, as Storage does.
func (c *Catalog) Device(ctx context.Context, name string) (client device.Client, release func(), err error) {
	return acquire(ctx, c, deviceKind, name, false)
}

// DoDevice is DoStorage for a device plugin.
func (c *Catalog) DoDevice(ctx context.Context, name string,
	fn func(ctx context.Context, client device.Client) error,
) error {
	return Do(ctx, c, deviceKind, name, fn)
}
