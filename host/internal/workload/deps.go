package workload

import (
	"context"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/drivers"
	"github.com/pannier/pannier/host/internal/events"
	"github.com/pannier/pannier/sdk/storage"
)

// Ledger is the cluster's replicated state as a workload sees it.
type Ledger interface {
	// Volume reads one volume.
	Volume(ctx context.Context, ref claim.VolumeRef) (claim.Volume, error)
	// StartWorkload takes all of the claims or none, in one command, and returns
	// them with their volumes in the same order. Repeating it gives the same.
	StartWorkload(ctx context.Context, ref claim.WorkloadRef, node string, want []claim.Claim) ([]claim.Claim, []claim.Volume, error)
	// EndWorkload marks the workload as ended and its claims as unpublishing. One
	// that is not there is success.
	EndWorkload(ctx context.Context, ref claim.WorkloadRef) error
	// NodeDetached records that nothing of these volumes is mounted for the
	// workload any more; the rest of the release is the leader's. A claim that is
	// not there is success.
	NodeDetached(ctx context.Context, ref claim.WorkloadRef, volumes []claim.VolumeRef) error
	// AwaitFreed waits until the workload has no claim on these volumes.
	AwaitFreed(ctx context.Context, ref claim.WorkloadRef, volumes []claim.VolumeRef) error
	// OnNode lists the workloads that the ledger believes to run on a node, and the
	// claims on that node.
	OnNode(ctx context.Context, node string) ([]claim.WorkloadRef, []claim.Claim, error)
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

// Deps are what a Manager works with.
type Deps struct {
	Ledger     Ledger
	Controller Controller
	Drivers    Drivers
	Calls      drivers.Caller
	// Secrets opens a volume's sealed secrets.
	Secrets func(v claim.Volume) (map[string]string, error)
	Events  *events.Bus
}
