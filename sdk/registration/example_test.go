package registration_test

import (
	"context"
	"fmt"
	"log"
	"maps"
	"slices"
	"sync"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// catalog is a plugin whose catalog is in memory. A real one is elsewhere: a plugin's process may be replaced between
// any two calls.
type catalog struct {
	mu       sync.Mutex
	services map[string]string // names, by id
}

func (c *catalog) Register(_ context.Context, _ service.Consul, i registration.Instance) (proxyID string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[i.ID] = i.Service.Name
	return "", nil // it has no proxy
}

func (c *catalog) Deregister(_ context.Context, _ service.Consul, _ registration.Owner, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.services, id)
	return nil
}

// Sync registers what is missing and removes what should not be there. This catalog is not changed by others, so there
// is nothing to wait for.
func (c *catalog) Sync(_ context.Context, _ service.Consul, req registration.SyncRequest) (uint64,
	[]registration.Change, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var changes []registration.Change
	wanted := map[string]string{}
	for _, i := range req.Instances {
		wanted[i.ID] = i.Service.Name
		if _, ok := c.services[i.ID]; !ok {
			changes = append(changes, registration.Change{ID: i.ID, Action: registration.Registered, Reason: "missing"})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.services)) {
		if _, ok := wanted[id]; !ok {
			changes = append(changes, registration.Change{ID: id, Action: registration.Removed, Reason: "not wanted"})
		}
	}
	c.services = wanted
	return req.Index + 1, changes, nil
}

func (c *catalog) Heartbeat(context.Context, service.Consul, []registration.Beat) error { return nil }

// A plugin's main is sdk.Main(info, registration.Plugin(&catalog{...})). Here it is served in the same process, and
// called as a host calls it.
func Example() {
	info := sdk.Info{Name: "catalog", Version: "1.0.0"}
	conn, stop, err := inprocess.Serve(info, registration.Plugin(&catalog{services: map[string]string{}}))
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	host, ctx := registration.NewClient(conn), context.Background()

	web := registration.Instance{ID: "web-1", Service: service.Service{Name: "web"}}
	api := registration.Instance{ID: "api-1", Service: service.Service{Name: "api"}}
	if _, err := host.Register(ctx, service.Consul{}, web); err != nil {
		fmt.Println(err)
		return
	}
	_, changes, err := host.Sync(ctx, service.Consul{}, registration.SyncRequest{Instances: []registration.Instance{api}})
	for _, c := range changes {
		fmt.Println(c.ID, c.Action, c.Reason)
	}
	fmt.Println(err)
	// Output:
	// api-1 registered missing
	// web-1 removed not wanted
	// <nil>
}
