package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/frontend"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
)

// probe checks whether a new process of a plugin can take over from the old one: a storage plugin that the drivers are
// reached through must see them as they are, a device plugin must have the devices that workloads hold, a front door
// must be ready, and the others must not fail what the old one does not.
func (a *agent) probe(ctx context.Context, name, kind string, conn grpc.ClientConnInterface) error {
	select {
	case <-a.driversUp:
	default:
		return nil // nothing was used yet
	}
	switch kind {
	case storage.Kind:
		serves := map[string]bool{}
		for _, u := range a.servedBy(name) {
			serves[u.ID] = true
		}
		return a.drivers.CheckCompatible(ctx, storage.NewClient(conn), func(id string) bool { return serves[id] })
	case device.Kind:
		return a.devices.CheckCompatible(ctx, name, device.NewClient(conn))
	case frontend.Kind:
		return a.doors.Probe(ctx, conn)
	default:
		return a.probeConsuls(ctx, name, kind, conn)
	}
}

// probeTimeout bounds a call that tries a plugin.
const probeTimeout = 3 * time.Second

// probeConsuls makes a call for each Consul that changes nothing. If it fails as a plugin fails, and the serving
// process does not fail so, the new one is refused.
func (a *agent) probeConsuls(ctx context.Context, name, kind string, conn grpc.ClientConnInterface) error {
	for _, c := range a.cfg.Consuls {
		served := func(u catalog.Use) bool { return u.Kind == kind && u.ID == c.Name }
		if !slices.ContainsFunc(a.servedBy(name), served) {
			continue
		}
		err := tryConsul(ctx, kind, conn, c.Consul)
		if !supervisor.IsFailure(err) {
			continue
		}
		serving, acquireErr := a.plugins.Acquire(ctx, name)
		if acquireErr != nil {
			return acquireErr
		}
		was := tryConsul(ctx, kind, serving.Conn, c.Consul)
		serving.Release()
		if !supervisor.IsFailure(was) {
			return fmt.Errorf("consul %q: it fails a call that the serving process does not fail: %w", c.Name, err)
		}
	}
	return nil
}

// tryConsul makes a call that changes nothing and asks for nothing that exists.
func tryConsul(ctx context.Context, kind string, conn grpc.ClientConnInterface, c service.Consul) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	const nothing = "00000000-0000-0000-0000-000000000000"
	switch kind {
	case identity.Kind:
		_, err := identity.NewClient(conn).Read(ctx, c, nothing)
		return err
	case registration.Kind:
		return registration.NewClient(conn).Heartbeat(ctx, c, nil)
	case bootstrap.Kind:
		// Without a wrong port it would wait for the registration.
		_, err := bootstrap.NewClient(conn).Generate(ctx, c,
			bootstrap.Request{ProxyID: nothing, Admin: bootstrap.Bind{Port: -1}})
		return err
	default:
		return nil
	}
}

// servedBy returns the uses that a plugin serves.
func (a *agent) servedBy(plugin string) []catalog.Use {
	all := a.plugins.Status()
	return slices.DeleteFunc(a.uses(), func(u catalog.Use) bool { return u.By(all) != plugin })
}
