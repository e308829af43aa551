package frontdoors

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/frontend"
)

// Plugins is the part of supervisor.Supervisor that Run uses.
type Plugins interface {
	Acquire(ctx context.Context, name string) (supervisor.Handle, error)
	Await(ctx context.Context, done func([]supervisor.Status) bool) error
}

const (
	// drainTimeout bounds how long a process may finish its connections after a swap. frontend.Frontend promises it.
	drainTimeout = 5 * time.Minute
	// serveTimeout bounds a call of Serve, which only begins to serve.
	serveTimeout = 10 * time.Second
	// retryInterval is the pause before a failed call of Serve is made again.
	retryInterval = time.Second
)

// Run lets the front doors serve until ctx ends. Their processes then go on: the next host finds them serving.
func (d *Doors) Run(ctx context.Context, plugins Plugins) {
	var running sync.WaitGroup
	defer running.Wait()
	served := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range served {
			stop()
		}
	}()
	var names []string
	for {
		err := plugins.Await(ctx, func(all []supervisor.Status) bool {
			now := doorsAmong(all)
			changed := !slices.Equal(now, names)
			names = now
			return changed
		})
		if err != nil {
			return // the host is stopping
		}
		for name, stop := range served {
			if !slices.Contains(names, name) {
				stop()
				delete(served, name)
			}
		}
		for _, name := range names {
			if served[name] == nil {
				serving, stop := context.WithCancel(ctx)
				served[name] = stop
				running.Go(func() { d.serve(serving, plugins, name) })
			}
		}
	}
}

// doorsAmong returns the names of the front doors, sorted.
func doorsAmong(all []supervisor.Status) (names []string) {
	for _, s := range all {
		if s.Kind == frontend.Kind && s.DuplicateOf == "" {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// serve lets one process of a plugin after the other serve, until ctx ends. Each is held until it has finished its
// connections: the supervisor does not stop it before.
func (d *Doors) serve(ctx context.Context, plugins Plugins, name string) {
	var draining sync.WaitGroup
	defer draining.Wait()
	var before supervisor.Handle // the process that served until now
	defer func() {
		if before.Release != nil {
			before.Release()
		}
	}()
	for ctx.Err() == nil { // a process that was acquired may not serve
		now, err := plugins.Acquire(ctx, name)
		if err != nil {
			return // the host is stopping, or the plugin is gone
		}
		if !d.begin(ctx, name, now) {
			now.Release()
			continue
		}
		if old := before; old.Release != nil {
			draining.Go(func() { d.drain(ctx, name, old) })
		}
		before = now
		select {
		case <-now.Retired:
		case <-ctx.Done():
			return
		}
	}
}

// Probe checks whether a process could serve. Before Open it is not asked, since it may need the API for that.
func (d *Doors) Probe(ctx context.Context, conn grpc.ClientConnInterface) error {
	select {
	case <-d.opened:
		return frontend.NewClient(conn).Ready(ctx)
	default:
		return nil
	}
}

// begin makes a process serve. It returns false if that did not succeed before another one took over, or ctx ended.
func (d *Doors) begin(ctx context.Context, name string, process supervisor.Handle) bool {
	for warned := false; ; warned = true {
		call, cancel := context.WithTimeout(ctx, serveTimeout)
		err := frontend.NewClient(process.Conn).Serve(call)
		cancel()
		if err == nil {
			return true
		}
		if !warned && ctx.Err() == nil {
			d.cfg.Log.Warn("a front door does not serve", "plugin", name, "version", process.Version, "error", err)
		}
		select {
		case <-time.After(retryInterval):
		case <-process.Retired:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// drain lets a process finish its connections, and releases it.
func (d *Doors) drain(ctx context.Context, name string, process supervisor.Handle) {
	defer process.Release()
	select {
	case <-process.Ended:
		return
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := frontend.NewClient(process.Conn).Drain(ctx); err != nil {
		d.cfg.Log.Warn("a front door has not finished its connections", "plugin", name, "version", process.Version, "error", err)
	}
}
