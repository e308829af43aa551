package workload

import (
	"context"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/sdk/device"
)

// Spec is what an operator requests.
type Spec = specs.Spec

// Nodes are the other nodes of the cluster.
type Nodes interface {
	// StopWorkload asks a node to stop a workload, and does not wait for its end. A workload that
	// does not run there is success.
	StopWorkload(ctx context.Context, node string, ref claim.WorkloadRef, reason string) error
}

// Lease is this node's right to use volumes (lease.Lease).
type Lease interface {
	volumesteps.Lease
	// ProtectProcess tells the fence of a process that uses volumes, ReleaseProcess that it has
	// ended.
	ProtectProcess(ctx context.Context, p fence.Process) error
	ReleaseProcess(ctx context.Context, p fence.Process) error
}

// Drivers are the CSI drivers of this node.
type Drivers interface {
	// Get reads one driver; the error for an unknown one names the known ones.
	Get(id string) (drivers.Driver, error)
	// Changed is closed when any driver next changes.
	Changed() <-chan struct{}
}

// Devices are this node's devices (devices.Registry).
type Devices interface {
	// Pick gives a workload free and healthy devices for all requests, or none
	// (devices.ErrTooFew). It waits until ctx ends for plugins that have not reported theirs yet.
	Pick(ctx context.Context, holder claim.WorkloadRef, want []devices.Request) ([]devices.Given, error)
	// Check explains why Pick would fail or wait now, and takes nothing.
	Check(namespace string, want []devices.Request) error
	// Reserve asks the plugins what the workload needs to use the devices. It may be repeated.
	Reserve(ctx context.Context, given []devices.Given) (device.Reservation, error)
	// Hold marks the devices that a workload was given before a restart of the host.
	Hold(holder claim.WorkloadRef, given []devices.Given)
	// Free frees all devices of a workload.
	Free(holder claim.WorkloadRef)
}

// Deps are the other parts of the host that a Manager uses.
type Deps struct {
	Ledger cluster.Ledger
	Nodes  Nodes // nil: a standalone host
	Lease  Lease // nil: a standalone host, which needs none
	// Fenced returns what the fence did to a workload since a time in this boot; empty: nothing. Nil: there is no fence.
	Fenced func(ref claim.WorkloadRef, since boottime.Instant) string
	// RemoteLedger is true if the ledger is on other hosts, and may be unreachable when this one starts.
	RemoteLedger bool
	Controller   volumesteps.Controller
	Drivers      Drivers
	Devices      Devices
	Calls        drivers.Caller
	Tokens       servicesteps.Tokens
	Services     servicesteps.Services
	// Secrets decrypts a volume's secrets, here or on the server that can.
	Secrets func(ctx context.Context, v claim.Volume) (map[string]string, error)
	// ReadSecret reads the file of a file:// reference of a driver's block.
	ReadSecret func(ref string) (string, error)
	Events     *events.Bus

	// Datacenter is this node's, for ${node.datacenter}.
	Datacenter string
	// Ports allocates this node's ports.
	Ports *ports.Allocator
	// SecretsDir keeps the files of services.
	SecretsDir *secretsdir.Dir
	// IdentityTimeout bounds a token's derivation with all retries, by the name of the agent's
	// consul block; 0 or absent: 5 minutes.
	IdentityTimeout map[string]time.Duration
	// CheckAddresses are those of servicesteps.Steps.
	CheckAddresses map[string][]string
	// Traces records the release of workloads that no call asked for.
	Traces *tracing.Tracer
}
