// Package registration is the kind "registration": a plugin that puts workloads'
// services into a catalog.
package registration

import (
	"context"
	"time"

	"github.com/pannier/pannier/sdk/service"
)

// Kind is the kind's protocol with its version.
const Kind = "registration.v1"

// Registration is what a plugin of the kind "registration" must do. The host calls
// it through the same interface, so one reading serves both sides.
//
// Errors are gRPC status errors: Unavailable, DeadlineExceeded and
// ResourceExhausted are worth another try, all others are final; an error that is no
// status reaches the host as Internal. Every call may be repeated, at any time and by
// another process of the same plugin.
type Registration interface {
	// Register makes the catalog say what the instance says, tags included, whatever
	// EnableTagOverride is. It returns the service id of the instance's proxy: its sidecar,
	// or itself where it is a gateway; empty where it has none.
	Register(ctx context.Context, c service.Consul, i Instance) (proxyID string, err error)
	// Deregister takes an instance out, with its sidecar and checks. One that is not
	// there is success.
	Deregister(ctx context.Context, c service.Consul, id string) error
	// Sync waits until the catalog has changed since req.Index, or req.Wait has passed, and
	// then makes it say what the instances say: what is missing or drifted is
	// registered again (with EnableTagOverride the catalog's tags stay), what the
	// owner has there beside them is taken out. Where nothing has drifted it costs one
	// blocking query and no write. index is for the next call.
	Sync(ctx context.Context, c service.Consul, req SyncRequest) (index uint64, changes []Change, err error)
	// Heartbeat reports the health of processes to the checks of type process.
	Heartbeat(ctx context.Context, c service.Consul, beats []Beat) error
}

// Owner is who registers: what bears its mark is its own, and nothing else.
type Owner struct {
	Cluster string // Pannier's
	Node    string
}

// Instance is a service of one workload, ready to be registered: ports are numbers,
// and nothing is left to interpolate.
type Instance struct {
	// ID in Consul, unique on its agent.
	ID        string
	Owner     Owner
	Namespace string
	Workload  string
	Service   service.Service
}

// SyncRequest is what Sync is to make true.
type SyncRequest struct {
	Owner     Owner
	Instances []Instance
	Index     uint64        // of the previous answer; 0: look at once
	Wait      time.Duration // bounds the wait; 0: look at once
}

// Change is one thing that Sync has done.
type Change struct {
	ID     string
	Action Action
	Reason string // such as "missing" or "tags"
}

// Action is what was done to an instance.
type Action string

// The actions.
const (
	Registered Action = "registered"
	Removed    Action = "removed"
)

// Beat is the health of one instance's process.
type Beat struct {
	ID      string
	Healthy bool
	Output  string // for people
}
