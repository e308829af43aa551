package apiserver

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/host/internal/leader/watcher"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/sdk/storage"
)

// Ledger is the cluster's replicated state (cluster.Node).
type Ledger interface {
	// Ready is closed when it can be read.
	Ready() <-chan struct{}
	Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
	// ReadLatest, ReadChanged and ReadHere say how true what is read is, and wait for changes.
	ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error
	ReadChanged(ctx context.Context, b cluster.Blocking, topics []state.Topic, fn func(tx *state.ReadTx) error) (index uint64, err error)
	ReadHere(ctx context.Context, b cluster.Blocking, topics []state.Topic, fn func(tx *state.ReadTx) error) (index uint64, err error)
	Watch(ctx context.Context, topics ...state.Topic) <-chan struct{}
	SetNodeDuty(ctx context.Context, duty command.SetNodeDuty) (claim.Node, error)
	SetNodeStatus(ctx context.Context, name string, status claim.NodeStatus, by string) (command.SetNodeStatusResult, error)
	DeleteNode(ctx context.Context, name string) (command.DeleteNodeResult, error)
	// DeleteDownNode leaves a node alone that has come back since it was read.
	DeleteDownNode(ctx context.Context, read claim.Node) (command.DeleteNodeResult, error)
	RegisterVolume(ctx context.Context, v claim.Volume) (command.RegisterVolumeResult, error)
	DeregisterVolume(ctx context.Context, ref claim.VolumeRef, force bool) (command.DeregisterVolumeResult, error)
	Stats() cluster.Stats
	ACLLedger
}

// Controllers call the drivers (controllers.Controllers).
type Controllers interface {
	Exclusive(ctx context.Context, ref claim.VolumeRef) (unlock func(), err error)
	Validate(ctx context.Context, v claim.Volume) (warnings []string, err error)
	Create(ctx context.Context, v claim.Volume) (claim.Volume, error)
	Delete(ctx context.Context, v claim.Volume, secrets map[string]string) error
	List(ctx context.Context, driverID string, page storage.Page) (storage.ListResponse, error)
	Expand(ctx context.Context, v claim.Volume, minBytes, maxBytes int64, inUse bool) (storage.ExpandResponse, error)
	ExpandNode(ctx context.Context, v claim.Volume, at controllers.Place, minBytes, maxBytes int64) error
	Stats(ctx context.Context, v claim.Volume, at controllers.Place) (storage.Stats, error)
	CreateSnapshot(ctx context.Context, v claim.Volume, name string, parameters, secrets map[string]string) (storage.Snapshot, error)
	DeleteSnapshot(ctx context.Context, driverID, snapshotID string, secrets map[string]string) error
	ListSnapshots(ctx context.Context, driverID string, req storage.ListSnapshotsRequest) (storage.ListSnapshotsResponse, error)
}

// Nodes ask other nodes about what they have mounted, while this one leads (peer.Nodes).
type Nodes interface {
	// ExpandVolume grows what is mounted of a volume on a node. It may be repeated.
	ExpandVolume(ctx context.Context, node string, v claim.Volume, minBytes, maxBytes int64) (places int, err error)
	VolumeStats(ctx context.Context, node string, v claim.Volume) (storage.Stats, error)
}

// Drivers are the CSI drivers of this node (drivers.Registry).
type Drivers interface {
	Get(id string) (drivers.Driver, error)
	List() []drivers.Driver
	Register(ctx context.Context, spec drivers.Spec) (drivers.Driver, error)
	Deregister(ctx context.Context, id string, force bool) error
}

// Devices are those of this node (devices.Registry).
type Devices interface {
	List() []devices.Group
	// Sample asks each plugin once how its devices are used.
	Sample(ctx context.Context) []devices.Sample
}

// Plugins are the plugin processes of this host (supervisor.Supervisor).
type Plugins interface {
	Status() []supervisor.Status
	Swap(ctx context.Context, name string) (supervisor.Status, error)
	Rollback(ctx context.Context, name string) (supervisor.Status, error)
	Pin(ctx context.Context, name, sha string) (supervisor.Status, error)
	Unpin(ctx context.Context, name string) (supervisor.Status, error)
	// Verify tries a file beside everything.
	Verify(ctx context.Context, path string) (supervisor.Verified, error)
	// Log is the path of the file that a plugin's processes print to.
	Log(name string) (string, error)
}

// Workloads are those of this node (workload.Manager).
type Workloads interface {
	Start(ctx context.Context, spec workload.Spec, opts workload.Options) (workload.Workload, error)
	Stop(ctx context.Context, ref claim.WorkloadRef, reason string, progress func(workload.Step)) (workload.Workload, error)
	Running(ref claim.WorkloadRef, pid int) error
	Get(ref claim.WorkloadRef) (workload.Workload, error)
	List() []workload.Workload
	Placements(ref claim.VolumeRef) []workload.Placement
}

// Releaser brings claims to their end (watcher.Watcher).
type Releaser interface {
	// Detach drives every claim of a volume on a node through the release; by is who
	// asks for it.
	Detach(ctx context.Context, ref claim.VolumeRef, node string, force bool, by string) ([]watcher.Detached, error)
	// Attempt tells how the release of a volume's claims stands; ok is false where
	// none is on its way out.
	Attempt(ref claim.VolumeRef) (a watcher.Attempt, ok bool)
}

// Services keep the services of this node's workloads in Consul (services.Registrar).
type Services interface {
	// Problems say for each of the agent's consul blocks what keeps them from being in
	// sync there; empty: nothing does.
	Problems() map[string]string
}

// Tokens are the Consul tokens of the cluster's services (tokens.Authority).
type Tokens interface {
	// List reads those of a namespace and of a workload; empty: of all.
	List(ctx context.Context, namespace, workload string) ([]tokens.Listed, error)
	// Sweep revokes those whose workload is gone; a dry run only tells which.
	Sweep(ctx context.Context, dryRun bool) (tokens.Report, error)
}

// Port takes the API's calls from other hosts (rpc.Port).
type Port interface {
	HTTP() net.Listener
	// ConnContext says who is at the other end (rpc.PeerFrom).
	ConnContext(ctx context.Context, c net.Conn) context.Context
}

// Certs are the agent's certificate, and who it believes (pki.Certs).
type Certs interface {
	// Public is the called side of connections, with a certificate or without.
	Public(protocols ...string) *tls.Config
	PeerOf(state tls.ConnectionState) (transport.Peer, error)
}

// ACL says what a caller may do (acl.Resolver).
type ACL interface {
	// Resolve finds what the token with this secret allows; empty: what a call without one
	// may do. Errors: acl.ErrUnknownToken, acl.ErrExpired.
	Resolve(ctx context.Context, secret string) (acl.Identity, error)
}
