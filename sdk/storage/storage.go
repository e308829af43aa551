// Package storage is the kind "storage": CSI volumes. An author implements Storage and those of the optional
// interfaces that the driver's fingerprint tells of (Attacher, Stager, Provisioner, CapacityReader, VolumeReader,
// Modifier, Expander, Snapshotter, GroupSnapshotter, StatsReader), or DriverBringer, and serves it with
// sdk.Main(storage.Plugin(...)).
// The protocol is pannier.plugin.storage.v1. A plugin keeps no state: each call names its driver and carries
// everything that it needs.
package storage

import (
	"context"
)

// Storage is the interface of a plugin of the kind "storage". The host calls it through the same interface
// (Client).
//
// Errors are gRPC status errors with the codes of the CSI spec (section "Error Scheme"); any other error reaches
// the host as Internal. Every call may be repeated with the same arguments, at any time and by another process of
// the same plugin.
type Storage interface {
	// Fingerprint calls report with the driver's identity, capabilities and health, at once and then on each
	// change, until ctx ends; it then returns ctx.Err(). An unreachable driver is a report with Healthy false,
	// never an error. An error from report ends the call: it has a capability that the plugin lacks the interface for.
	// Poll does this for a driver that can only be asked.
	Fingerprint(ctx context.Context, d Driver, opts FingerprintOptions, report func(Fingerprint) error) error
	// ValidateVolume compares the request with what the driver confirms. FailedPrecondition lists all differences;
	// warnings are for the operator.
	ValidateVolume(ctx context.Context, d Driver, req ValidateRequest) (warnings []string, err error)
	// Publish mounts the volume for one workload (NodePublishVolume).
	Publish(ctx context.Context, d Driver, req PublishRequest) error
	// Unpublish reverses Publish (NodeUnpublishVolume). NotFound is success.
	Unpublish(ctx context.Context, d Driver, v Volume, targetPath string) error
}

// Attacher makes volumes available on nodes. It is optional, as all that follow: without it the host gets
// Unimplemented.
type Attacher interface {
	// Attach makes the volume available on a node (ControllerPublishVolume) and
	// returns the driver's publish context.
	Attach(ctx context.Context, d Driver, req AttachRequest) (publishContext map[string]string, err error)
	// Detach reverses Attach (ControllerUnpublishVolume). NotFound is success.
	Detach(ctx context.Context, d Driver, v Volume, nodeID string) error
}

// Stager mounts volumes once for all of a node's users. Optional.
type Stager interface {
	// Stage mounts the volume at a path of its own (NodeStageVolume).
	Stage(ctx context.Context, d Driver, req StageRequest) error
	// Unstage reverses Stage (NodeUnstageVolume). NotFound is success.
	Unstage(ctx context.Context, d Driver, v Volume, stagingPath string) error
}

// Provisioner makes, deletes and lists volumes. Optional.
type Provisioner interface {
	// Create makes a volume, or returns the existing one of that name (CreateVolume).
	Create(ctx context.Context, d Driver, req CreateRequest) (CreateResponse, error)
	// Delete deprovisions a volume (DeleteVolume). NotFound is success.
	Delete(ctx context.Context, d Driver, v Volume) error
	// List lists the driver's volumes, a page at a time (ListVolumes).
	List(ctx context.Context, d Driver, page Page) (ListResponse, error)
}

// VolumeReader reads volumes at their driver. Optional.
type VolumeReader interface {
	// Get reads one volume, with its condition (ControllerGetVolume, ControllerGetVolumeHealth). NotFound means that
	// the driver does not have it.
	Get(ctx context.Context, d Driver, v Volume) (ListedVolume, error)
}

// Modifier changes volumes. Optional.
type Modifier interface {
	// Modify changes mutable parameters (ControllerModifyVolume). Parameters that are not given stay as they are.
	Modify(ctx context.Context, d Driver, req ModifyRequest) error
}

// CapacityReader returns how much room there is. Optional.
type CapacityReader interface {
	// Capacity returns how much room the driver has for new volumes (GetCapacity).
	Capacity(ctx context.Context, d Driver, req CapacityRequest) (Capacity, error)
}

// Expander grows volumes. Optional.
type Expander interface {
	// Expand grows the volume (ControllerExpandVolume).
	Expand(ctx context.Context, d Driver, req ExpandRequest) (ExpandResponse, error)
	// ExpandNode grows the volume mounted on this node (NodeExpandVolume) and returns the new size in bytes, 0 if
	// the driver does not report it.
	ExpandNode(ctx context.Context, d Driver, req ExpandNodeRequest) (capacity int64, err error)
}

// Snapshotter makes, deletes and lists snapshots. Optional.
type Snapshotter interface {
	// CreateSnapshot makes a snapshot, or returns the existing one of that name (CreateSnapshot).
	CreateSnapshot(ctx context.Context, d Driver, req CreateSnapshotRequest) (Snapshot, error)
	// DeleteSnapshot deletes a snapshot (DeleteSnapshot). NotFound is success.
	DeleteSnapshot(ctx context.Context, d Driver, snapshotID string, secrets map[string]string) error
	// ListSnapshots lists snapshots, a page at a time (ListSnapshots).
	ListSnapshots(ctx context.Context, d Driver, req ListSnapshotsRequest) (ListSnapshotsResponse, error)
}

// GroupSnapshotter makes, deletes and reads snapshots of several volumes as of one moment. Optional.
type GroupSnapshotter interface {
	// CreateGroupSnapshot makes them, or returns the existing ones of that name (CreateVolumeGroupSnapshot).
	CreateGroupSnapshot(ctx context.Context, d Driver, req CreateGroupSnapshotRequest) (GroupSnapshot, error)
	// DeleteGroupSnapshot deletes a group with its snapshots (DeleteVolumeGroupSnapshot). NotFound is success.
	DeleteGroupSnapshot(ctx context.Context, d Driver, req GroupSnapshotRequest) error
	// GetGroupSnapshot reads a group with its snapshots (GetVolumeGroupSnapshot).
	GetGroupSnapshot(ctx context.Context, d Driver, req GroupSnapshotRequest) (GroupSnapshot, error)
}

// StatsReader reads usage and condition of a mounted volume. Optional.
type StatsReader interface {
	// VolumeStats reads them from the node service (NodeGetVolumeStats).
	VolumeStats(ctx context.Context, d Driver, req StatsRequest) (Stats, error)
}

// DriverBringer is implemented by a plugin that is its own driver: the host's configuration needs no csi_driver block
// for the drivers that it brings. Optional.
type DriverBringer interface {
	// Drivers names them, of the plugin's configuration: at most 100, with different ids. The endpoint, of at most 1024
	// bytes, means nothing to the host, which gives it back with each call; empty: the host makes one up. The host asks
	// each process of the plugin once, when it serves, and asks again if that fails. A driver that is not named any more
	// is removed once no workload uses it: until then the plugin must still release its volumes. A csi_driver block of
	// the same id comes first, with its own endpoint. Each driver needs a node service.
	Drivers(ctx context.Context) ([]Driver, error)
}

// EventRetries is the type of the event (sdk.Emit) that a plugin emits while it repeats a call to a driver, with the
// driver's id as its subject; the host shows its message as what the step of a workload waits for. DetailVolume is
// the key of the volume's external id in its details.
const (
	EventRetries = "driver-retries"
	DetailVolume = "external_id"
)

// Client is the host's client of a storage plugin. Methods that the plugin does not implement return
// Unimplemented.
type Client interface {
	Storage
	Attacher
	Stager
	Provisioner
	CapacityReader
	VolumeReader
	Modifier
	Expander
	Snapshotter
	GroupSnapshotter
	StatsReader
	DriverBringer
}
