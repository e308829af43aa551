package workload

import (
	"context"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
)

// Ledger is the cluster's replicated state as a workload sees it.
type Ledger interface {
	// Volume reads one volume.
	Volume(ctx context.Context, ref claim.VolumeRef) (claim.Volume, error)
	// Workload reads one workload's record. The error is claim.ErrWorkloadNotFound where
	// the ledger knows none.
	Workload(ctx context.Context, ref claim.WorkloadRef) (claim.Workload, error)
	// AwaitWorkload records that a workload waits on a node for others. It may be repeated,
	// and is over with StartWorkload or EndWorkload. claim.ErrCycle: one of them waits for
	// this one.
	AwaitWorkload(ctx context.Context, run claim.Run, after []claim.WorkloadRef) error
	// AwaitEnded waits until nothing is left of a workload, wherever it is: it has ended,
	// or the ledger does not know it, and none of its claims stands. It does not poll.
	AwaitEnded(ctx context.Context, ref claim.WorkloadRef) error
	// StartWorkload takes all of the claims or none, and notes the tokens that Consul will
	// be asked for, in one command. Repeating it gives the same. claim.ErrIneligible: the
	// node takes no workloads now.
	StartWorkload(ctx context.Context, run claim.Run, want []claim.Claim, tokens []claim.Token) (Started, error)
	// EndWorkload marks the workload as ended and its claims as unpublishing, where the one
	// on this node is of that run (Started.Run; 0: any run). Any other, and one that is not
	// there, is left alone, and that is success. What was asked for the run before, and has
	// not arrived yet, is refused from now on.
	EndWorkload(ctx context.Context, run claim.Run) error
	// NodeDetached records that nothing of these claims' volumes is mounted for their
	// workloads any more; the rest of the release is the leader's. Workload, Volume, Node
	// and Index tell which are meant; Index 0: whichever stands there on that node. One that
	// is not there is success.
	NodeDetached(ctx context.Context, claims []claim.Claim) error
	// AwaitFreed waits until none of these claims, told as to NodeDetached, is there.
	AwaitFreed(ctx context.Context, claims []claim.Claim) error
	// ClaimsOf lists a workload's claims, on whichever node.
	ClaimsOf(ctx context.Context, ref claim.WorkloadRef) ([]claim.Claim, error)
	// OnNode lists the workloads that run or wait on a node, as far as the ledger knows, and
	// the claims on that node.
	OnNode(ctx context.Context, node string) ([]claim.Workload, []claim.Claim, error)
}

// Started is the ledger's answer to a workload's start.
type Started struct {
	// Run is the run's number: claim.Workload.CreateIndex.
	Run uint64
	// Claims are in the order asked for, and Volumes[n] is the volume of Claims[n].
	Claims  []claim.Claim
	Volumes []claim.Volume
}

// Nodes are the other nodes of the cluster.
type Nodes interface {
	// StopWorkload asks a node to stop a workload, and does not wait for its end. One that
	// does not run there is success.
	StopWorkload(ctx context.Context, node string, ref claim.WorkloadRef, reason string) error
}

// Lease is this node's right to use volumes (lease.Lease). Without one nothing is mounted;
// what is mounted the fence takes away when it is over.
type Lease interface {
	// Valid says whether volumes may be used now (lease.ErrNoLease).
	Valid() error
	// Term counts the leases: as long as it is the same, no claim was let go of by the servers.
	Term() uint64
	// Protect tells the fence of mounts that are about to be made; Release, that they are gone.
	Protect(ctx context.Context, mounts ...fence.Mount) error
	Release(ctx context.Context, mounts ...fence.Mount) error
	// ProtectProcess tells the fence of a process that uses volumes; ReleaseProcess, that it
	// has ended.
	ProtectProcess(ctx context.Context, p fence.Process) error
	ReleaseProcess(ctx context.Context, p fence.Process) error
}

// Controller makes the controller side of a driver's calls, wherever it runs.
type Controller interface {
	// Attach makes a volume available on this node and returns the driver's publish
	// context (CSI spec, ControllerPublishVolume).
	Attach(ctx context.Context, v claim.Volume, capability storage.Capability, node string) (map[string]string, error)
}

// Drivers are the CSI drivers of this node.
type Drivers interface {
	// Get reads one driver; the error of an unknown one names those that are known.
	Get(id string) (drivers.Driver, error)
	// Changed is closed when any driver next changes.
	Changed() <-chan struct{}
}

// Tokens gives services their tokens, and takes them back. The retries are the
// caller's: errors that are worth another try have the gRPC codes Unavailable,
// DeadlineExceeded or ResourceExhausted.
type Tokens interface {
	// Intend notes in the ledger that Consul will be asked for t. Those of a start are
	// noted with its claims instead. It may be repeated.
	Intend(ctx context.Context, t claim.Token) error
	// Derive asks Consul for the token that the ledger knows as t.ID and notes its
	// accessor. It may be repeated; where the token was minted it gives the same. No secret:
	// that Consul has ACLs disabled, and the service needs none.
	Derive(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error)
	// Read reads a token back from this node's Consul agent. NotFound: the agent does not
	// know it, or not yet.
	Read(ctx context.Context, consul, secret string) error
	// Revoke ends a token and forgets it once Consul has said that it is gone. One that is
	// not known is success. secret may be empty where it was minted.
	Revoke(ctx context.Context, t claim.Token, secret string) error
	// OnNode lists the ledger's tokens of a node.
	OnNode(ctx context.Context, node string) ([]claim.Token, error)
}

// Services puts services into Consul and takes them out. consul is the name of the
// agent's consul block. Retries are as with Tokens.
type Services interface {
	// Check says whether the agent has a consul block of that name.
	Check(consul string) error
	// Register makes Consul say what the instance says, and returns its proxy's id, empty
	// where it has none. Owner is filled in.
	Register(ctx context.Context, consul string, i registration.Instance) (proxyID string, err error)
	// Deregister takes an instance out; one that is not there is success.
	Deregister(ctx context.Context, consul, id string) error
	// Bootstrap makes the file that a service's proxy is started with.
	Bootstrap(ctx context.Context, consul string, req bootstrap.Request) ([]byte, error)
	// Changed tells that the instances of this node (Manager.Instances) have changed.
	Changed()
}

// Devices are those of this node (devices.Registry).
type Devices interface {
	// Pick gives a workload free and healthy devices for all requests, or none
	// (devices.ErrTooFew). It waits until ctx ends for plugins that have yet to tell of theirs.
	Pick(ctx context.Context, holder claim.WorkloadRef, want []devices.Request) ([]devices.Given, error)
	// Reserve asks what the workload needs to use them. It may be repeated.
	Reserve(ctx context.Context, given []devices.Given) (device.Reservation, error)
	// Hold notes what a workload was given before a restart of the host.
	Hold(holder claim.WorkloadRef, given []devices.Given)
	// Free takes all devices of a workload back.
	Free(holder claim.WorkloadRef)
}

// Deps are what a Manager works with.
type Deps struct {
	Ledger Ledger
	Nodes  Nodes // nil: this node is alone
	Lease  Lease // nil: it is alone, and its claims are its own
	// Fenced tells what the fence did to a workload since a moment; empty: nothing. Nil:
	// there is no fence.
	Fenced func(ref claim.WorkloadRef, since time.Time) string
	// Patient: the ledger is on other hosts, and may be away when this one is started.
	Patient    bool
	Controller Controller
	Drivers    Drivers
	Devices    Devices
	Calls      drivers.Caller
	Tokens     Tokens
	Services   Services
	// Secrets opens a volume's sealed secrets, here or on the server that can.
	Secrets func(ctx context.Context, v claim.Volume) (map[string]string, error)
	Events  *events.Bus

	// Datacenter is this node's, for ${node.datacenter}.
	Datacenter string
	// Ports gives this node's ports.
	Ports *ports.Allocator
	// SecretsDir keeps the files of services.
	SecretsDir *secretsdir.Dir
	// IdentityTimeout bounds a token's derivation, with all that is tried again, by the name
	// of the agent's consul block; 0 or absent: 5 minutes.
	IdentityTimeout map[string]time.Duration
}
