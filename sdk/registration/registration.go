// Package registration is the kind "registration": a plugin that registers workloads' services in a catalog.
package registration

import (
	"context"
	"time"

	"github.com/pannier/pannier/sdk/service"
)

// Kind is the kind's protocol with its version.
const Kind = "registration.v1"

// Registration is the interface of a plugin of the kind "registration". The host calls it through the same
// interface.
//
// Errors are gRPC status errors. Unavailable, DeadlineExceeded and ResourceExhausted are retried, all others are
// final. An error that is no status reaches the host as Internal. Every call may be repeated, at any time and by
// another process of the same plugin.
type Registration interface {
	// Register makes the catalog match the instance, including the tags, whatever EnableTagOverride is. It returns
	// the service id of the instance's proxy: its sidecar, or the instance itself if it is a gateway; empty if it
	// has none. AlreadyExists: what the catalog has under that id carries the mark of another owner. After
	// InvalidArgument, FailedPrecondition, PermissionDenied and Unauthenticated the host deregisters nothing: with
	// these codes the call has registered nothing.
	Register(ctx context.Context, c service.Consul, i Instance) (proxyID string, err error)
	// Deregister removes an instance of this owner with its sidecar and checks. It succeeds if the instance does not
	// exist, or carries the mark of another owner: that one stays.
	Deregister(ctx context.Context, c service.Consul, owner Owner, id string) error
	// Sync waits until the catalog has changed since req.Index, or req.Wait has passed, and then makes it match the
	// instances: it registers again what is missing or differs (with EnableTagOverride the catalog's tags stay), and
	// removes what else the owner has there. Entries with another owner's mark are left alone and reported as Conflict,
	// each time. If nothing differs, it costs one blocking query and no write. index is for the next call.
	Sync(ctx context.Context, c service.Consul, req SyncRequest) (index uint64, changes []Change, err error)
	// Heartbeat reports the health of processes to the checks of type "process".
	Heartbeat(ctx context.Context, c service.Consul, beats []Beat) error
}

// Intender is for plugins whose catalog has the permissions to call a service. Optional.
type Intender interface {
	// SetIntentions makes the catalog allow what the instances of a service ask for together, this one with its
	// Service.Intentions, and nothing else; without any, what it has asked for before is taken back. The host calls it
	// before Register and after Deregister, and Sync restores what it has written. AlreadyExists: others have said who
	// may call the service, and that is left alone.
	SetIntentions(ctx context.Context, c service.Consul, i Instance) error
}

// Owner identifies who registers. Only what carries the owner's mark may be changed or removed.
type Owner struct {
	Cluster string // Pannier's cluster
	Node    string
}

// Instance is a service of one workload, ready to be registered: ports are numbers, and all variables are
// expanded.
type Instance struct {
	// ID in Consul, unique on its agent.
	ID        string
	Owner     Owner
	Namespace string
	Workload  string
	Service   service.Service `proto:"-"` // which has its own rules (service.FromProto)
	// ProxyDigest is the one that the host knows of its proxy's configuration (Change), or another text; empty: Sync
	// reports none.
	ProxyDigest string
}

// SyncRequest is what the catalog should contain.
type SyncRequest struct {
	Owner     Owner
	Instances []Instance    `proto:"-"`
	Index     uint64        // from the previous call; 0: do not wait
	Wait      time.Duration // bounds the wait; 0: do not wait
}

// Change is one change that Sync made, or did not make because of a conflict, or has found.
type Change struct {
	ID     string
	Action Action
	Reason string // such as "missing" or "tags"
	// ProxyDigest is set where it was Reconfigured.
	ProxyDigest string
}

// Action is what was done to an instance.
type Action string

// The actions.
const (
	Registered Action = "registered"
	Removed    Action = "removed"
	Conflict   Action = "conflict"
	// IntentionsConflict: others have said who may call the service, and that was left alone.
	IntentionsConflict Action = "intentions-conflict"
	// Reconfigured: the catalog's configuration of the instance's proxy, with what Consul's proxy-defaults add, has
	// another digest than the instance. It is reported each time; a plugin need not do it.
	Reconfigured Action = "reconfigured"
)

// Beat is the health of one instance's process.
type Beat struct {
	ID      string
	Healthy bool
	Output  string // for people
}
