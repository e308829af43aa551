package catalog

import (
	"context"
	"slices"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/device"
)

// deviceKind has no preferred plugin: each tells of its own devices.
var deviceKind = kind[device.Client]{name: "device", protocol: device.Kind, client: device.NewClient}

// AwaitDevicePlugins waits until the names of the plugins of the kind device are others
// than seen, or those of the plugins that have not come up yet, which may be of that kind
// too, are others than unknown. It returns both, in order.
func (c *Catalog) AwaitDevicePlugins(ctx context.Context, seen, unknown []string) (names, pending []string, err error) {
	err = c.plugins.Await(ctx, func(all []supervisor.Status) bool {
		names, pending = nil, nil
		for _, s := range all {
			switch s.Kind {
			case device.Kind:
				names = append(names, s.Name)
			case "":
				pending = append(pending, s.Name)
			}
		}
		slices.Sort(names)
		slices.Sort(pending)
		return !slices.Equal(names, seen) || !slices.Equal(pending, unknown)
	})
	return names, pending, err
}

// Device borrows a device plugin until release is called, as Storage does.
func (c *Catalog) Device(ctx context.Context, name string) (client device.Client, release func(), err error) {
	return borrow(ctx, c, deviceKind, name)
}

// DoDevice is DoStorage for a device plugin.
func (c *Catalog) DoDevice(ctx context.Context, name string, fn func(ctx context.Context, client device.Client) error) error {
	return repeat(ctx, func(ctx context.Context) (device.Client, func(), error) { return c.Device(ctx, name) }, fn)
}
