package catalog

import (
	"context"
	"slices"

	"github.com/pannier/pannier/host/internal/supervisor"
	"github.com/pannier/pannier/sdk/device"
)

// deviceKind has no preferred plugin: each tells of its own devices.
var deviceKind = kind[device.Client]{name: "device", protocol: device.Kind, client: device.NewClient}

// DevicePlugins are the plugins of the kind device.
type DevicePlugins struct {
	Names []string // in their order
	// Unknown are plugins that have not come up yet: they may be of that kind too.
	Unknown []string
}

// AwaitDevicePlugins waits until the plugins of the kind device are others than seen, and
// returns them.
func (c *Catalog) AwaitDevicePlugins(ctx context.Context, seen DevicePlugins) (now DevicePlugins, err error) {
	err = c.plugins.Await(ctx, func(all []supervisor.Status) bool {
		now = DevicePlugins{}
		for _, s := range all {
			switch s.Kind {
			case device.Kind:
				now.Names = append(now.Names, s.Name)
			case "":
				now.Unknown = append(now.Unknown, s.Name)
			}
		}
		slices.Sort(now.Names)
		slices.Sort(now.Unknown)
		return !slices.Equal(now.Names, seen.Names) || !slices.Equal(now.Unknown, seen.Unknown)
	})
	return now, err
}

// Device borrows a device plugin until release is called, as Storage does.
func (c *Catalog) Device(ctx context.Context, name string) (client device.Client, release func(), err error) {
	return borrow(ctx, c, deviceKind, name)
}

// DoDevice is DoStorage for a device plugin.
func (c *Catalog) DoDevice(ctx context.Context, name string, fn func(ctx context.Context, client device.Client) error) error {
	return repeat(ctx, func(ctx context.Context) (device.Client, func(), error) { return c.Device(ctx, name) }, fn)
}
