package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

const (
	// driversTimeout bounds the question which drivers a plugin brings.
	driversTimeout = 10 * time.Second
	// driversPause is the pause before a plugin that failed to answer is asked again.
	driversPause = 5 * time.Second
)

// followBrought asks each process of a storage plugin that serves which drivers it brings, and forgets those of a
// plugin that was removed.
func (a *agent) followBrought(ctx context.Context) {
	asked, seen := map[string]uint64{}, map[string]uint64{}
	for ctx.Err() == nil {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if !maps.Equal(asked, seen) {
			wait, cancel = context.WithTimeout(ctx, driversPause)
		}
		serving, err := a.catalog.AwaitStorage(wait, seen)
		over := err != nil && wait.Err() == nil
		cancel()
		if over {
			return // the plugins are closed
		}
		for name := range asked {
			if _, here := serving[name]; !here {
				a.bring(ctx, name, nil)
				delete(asked, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(serving)) {
			if generation := serving[name]; asked[name] != generation && a.askDrivers(ctx, name) {
				asked[name] = generation
			}
		}
		seen = serving
	}
}

// askDrivers asks a plugin which drivers it brings.
func (a *agent) askDrivers(ctx context.Context, plugin string) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, driversTimeout)
	defer cancel()
	client, release, err := a.catalog.Storage(ctx, plugin)
	var all []storage.Driver
	if err == nil {
		defer release()
		all, err = client.Drivers(ctx)
	}
	if err != nil && status.Code(err) != codes.Unimplemented {
		if ctx.Err() == nil {
			a.log.Warn("a storage plugin does not say which drivers it brings; it is asked again", "plugin", plugin,
				"error", err)
		}
		return false
	}
	a.bring(ctx, plugin, all)
	return true
}

func (a *agent) bring(ctx context.Context, plugin string, all []storage.Driver) {
	if err := a.drivers.Bring(ctx, plugin, all); err != nil && ctx.Err() == nil {
		a.log.Error("drivers that a plugin brings were not taken over", "plugin", plugin, "error", err)
	}
}
