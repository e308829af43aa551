// Package storage is the SDK's kind "storage": CSI volumes. An author
// implements Storage, and the optional interfaces for what else the plugin can
// do, and serves it with sdk.Main(storage.Plugin(...)). The protocol below is
// pannier.plugin.storage.v1.
//
// It imports neither host nor cluster. A plugin keeps no state: each call
// names its driver and carries all that it needs.
package storage

import (
	"context"
	"time"
)

// Storage is what a plugin of the kind "storage" must do. The host calls it
// through the same interface (Client), so one reading serves both sides.
//
// Errors are gRPC status errors with the codes that the CSI spec gives them
// (section "Error Scheme"); any other error reaches the host as Internal. Every
// call may be repeated with the same arguments, at any time and by another
// process of the same plugin: an implementation keeps nothing that must last.
type Storage interface {
	// Fingerprint calls report with what the driver is and can do, at once and
	// then on each change, until ctx ends; it then returns ctx.Err(). A driver
	// that is away is a report with Healthy false, never an error. An error from
	// report ends the call.
	Fingerprint(ctx context.Context, d Driver, opts FingerprintOptions, report func(Fingerprint) error) error
	// Probe asks the driver once whether it is ready, within timeout (0: 5 s).
	Probe(ctx context.Context, d Driver, timeout time.Duration) (ready bool, err error)
	// ValidateVolume compares what is asked with what the driver confirms.
	// FailedPrecondition lists all differences; warnings are for the operator.
	ValidateVolume(ctx context.Context, d Driver, req ValidateRequest) (warnings []string, err error)

	// Attach makes the volume available on a node (ControllerPublishVolume) and
	// returns the driver's publish context.
	Attach(ctx context.Context, d Driver, req AttachRequest) (publishContext map[string]string, err error)
	// Detach reverses Attach (ControllerUnpublishVolume). NotFound is success.
	Detach(ctx context.Context, d Driver, v Volume, nodeID string) error
	// Stage mounts the volume once for all of a node's users (NodeStageVolume).
	Stage(ctx context.Context, d Driver, req StageRequest) error
	// Unstage reverses Stage (NodeUnstageVolume). NotFound is success.
	Unstage(ctx context.Context, d Driver, v Volume, stagingPath string) error
	// Publish mounts the volume for one workload (NodePublishVolume).
	Publish(ctx context.Context, d Driver, req PublishRequest) error
	// Unpublish reverses Publish (NodeUnpublishVolume). NotFound is success.
	Unpublish(ctx context.Context, d Driver, v Volume, targetPath string) error
}

// Provisioner makes, deletes and lists volumes. Optional: the host gets
// Unimplemented from a plugin that has it not.
type Provisioner interface {
	// Create provisions a volume, or gives back the one of that name (CreateVolume).
	Create(ctx context.Context, d Driver, req CreateRequest) (CreateResponse, error)
	// Delete deprovisions a volume (DeleteVolume). NotFound is success.
	Delete(ctx context.Context, d Driver, v Volume) error
	// List lists the driver's volumes, a page at a time (ListVolumes).
	List(ctx context.Context, d Driver, page Page) (ListResponse, error)
}

// Expander grows volumes. Optional.
type Expander interface {
	// Expand grows the volume (ControllerExpandVolume).
	Expand(ctx context.Context, d Driver, req ExpandRequest) (ExpandResponse, error)
	// ExpandNode grows what is mounted on this node (NodeExpandVolume) and returns
	// the new size in bytes, 0 when the driver does not say.
	ExpandNode(ctx context.Context, d Driver, req ExpandNodeRequest) (capacity int64, err error)
}

// Snapshotter makes, deletes and lists snapshots. Optional.
type Snapshotter interface {
	// CreateSnapshot makes a snapshot, or gives back the one of that name (CreateSnapshot).
	CreateSnapshot(ctx context.Context, d Driver, req CreateSnapshotRequest) (Snapshot, error)
	// DeleteSnapshot deletes a snapshot (DeleteSnapshot). NotFound is success.
	DeleteSnapshot(ctx context.Context, d Driver, snapshotID string, secrets map[string]string) error
	// ListSnapshots lists snapshots, a page at a time (ListSnapshots).
	ListSnapshots(ctx context.Context, d Driver, req ListSnapshotsRequest) (ListSnapshotsResponse, error)
}

// StatsReader reads usage and condition of a mounted volume. Optional.
type StatsReader interface {
	// VolumeStats reads them from the node service (NodeGetVolumeStats).
	VolumeStats(ctx context.Context, d Driver, req StatsRequest) (Stats, error)
}

// Client is the host's side of a storage plugin. What the plugin does not
// implement answers Unimplemented.
type Client interface {
	Storage
	Provisioner
	Expander
	Snapshotter
	StatsReader
}
