package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/device"
)

// Reserve asks the plugins what a workload needs to use its devices. It may be repeated. Errors are the plugins'
// gRPC status errors; FailedPrecondition if an answer cannot be used.
func (r *Registry) Reserve(ctx context.Context, given []Given) (device.Reservation, error) {
	ids := map[string][]string{}
	for _, g := range given {
		ids[g.Plugin] = append(ids[g.Plugin], g.ID)
	}
	var all device.Reservation
	for _, plugin := range slices.Sorted(maps.Keys(ids)) {
		var one device.Reservation
		err := r.plugins.DoDevice(ctx, plugin, func(ctx context.Context, client device.Client) (err error) {
			one, err = client.Reserve(ctx, ids[plugin])
			return err
		})
		if err != nil {
			return all, fmt.Errorf("reserve %s: %w", strings.Join(ids[plugin], ", "), err)
		}
		all.Mounts, all.Devices = append(all.Mounts, one.Mounts...), append(all.Devices, one.Devices...)
		for key, value := range one.Env {
			if other, there := all.Env[key]; there && other != value {
				return all, status.Errorf(codes.FailedPrecondition,
					"plugin %q sets the variable %q, and so does another plugin of the workload's devices", plugin, key)
			}
			if all.Env == nil {
				all.Env = map[string]string{}
			}
			all.Env[key] = value
		}
	}
	if err := all.Validate(); err != nil {
		return all, status.Errorf(codes.FailedPrecondition, "the device plugins' answer cannot be used: %v", err)
	}
	return all, nil
}

// Sample is the use of one plugin's devices.
type Sample struct {
	Plugin  string
	Devices []device.Stats
	// Err explains why there are no statistics; nil if the plugin does not support them.
	Err error
}

// Sample reads from each plugin once how its devices are used.
func (r *Registry) Sample(ctx context.Context) []Sample {
	r.mu.Lock()
	names := slices.Sorted(maps.Keys(r.told))
	r.mu.Unlock()
	out := make([]Sample, len(names))
	var asked sync.WaitGroup
	for n, plugin := range names {
		asked.Go(func() { out[n] = r.sample(ctx, plugin) })
	}
	asked.Wait()
	return out
}

func (r *Registry) sample(ctx context.Context, plugin string) Sample {
	ctx, cancel := context.WithTimeout(ctx, r.timing.sample)
	defer cancel()
	out := Sample{Plugin: plugin}
	got := false
	err := r.plugins.DoDevice(ctx, plugin, func(ctx context.Context, client device.Client) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err := client.Stats(ctx, time.Minute, func(devices []device.Stats) error {
			out.Devices, got = devices, true
			cancel() // one report is enough
			return nil
		})
		if got {
			return nil
		}
		return err
	})
	if status.Code(err) != codes.Unimplemented {
		out.Err = err
	}
	return out
}
