package storage

import "time"

// Driver is the CSI driver that a call is for.
type Driver struct {
	// ID is the driver's id in the host, used in messages.
	ID string
	// Endpoint is its socket on the host: unix:///path, or a bare path. Of one that the plugin brings it is what the
	// plugin said (DriverBringer).
	Endpoint string
}

// AccessMode is CSI's VolumeCapability.AccessMode under Nomad's names.
type AccessMode string

// The access modes. The two single-node-*-writer modes are CSI's
// SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER.
const (
	SingleNodeReaderOnly   AccessMode = "single-node-reader-only"
	SingleNodeWriter       AccessMode = "single-node-writer"
	SingleNodeSingleWriter AccessMode = "single-node-single-writer"
	SingleNodeMultiWriter  AccessMode = "single-node-multi-writer"
	MultiNodeReaderOnly    AccessMode = "multi-node-reader-only"
	MultiNodeSingleWriter  AccessMode = "multi-node-single-writer"
	MultiNodeMultiWriter   AccessMode = "multi-node-multi-writer"
)

// AttachmentMode is the access type of CSI's VolumeCapability.
type AttachmentMode string

// The attachment modes.
const (
	FileSystem  AttachmentMode = "file-system"
	BlockDevice AttachmentMode = "block-device"
)

// Capability is CSI's VolumeCapability. FSType, MountFlags and
// VolumeMountGroup are for file-system volumes only.
type Capability struct {
	AccessMode       AccessMode
	AttachmentMode   AttachmentMode
	FSType           string
	MountFlags       []string // may carry secrets: never logged
	VolumeMountGroup string
}

// Topology is a location of volumes or nodes, in the driver's own terms.
type Topology map[string]string

// TopologyRequirement is CSI's TopologyRequirement: Requisite restricts where the volume may be created,
// Preferred is an order of preference.
type TopologyRequirement struct {
	Requisite, Preferred []Topology
}

// Volume is what every call on one volume needs.
type Volume struct {
	Name       string            // the volume's id in the host, used in messages
	ExternalID string            // its id in the driver
	Context    map[string]string // the driver's volume_context, opaque
	Secrets    map[string]string // never logged, never stored
	Capability Capability
}

// FingerprintOptions bound a Fingerprint call. The zero value takes the defaults.
type FingerprintOptions struct {
	Interval     time.Duration // between two polls; default 30 s
	ProbeTimeout time.Duration // of the first Probe; default 30 s (later ones have 5 s)
}

// Fingerprint is what a driver is and can do at one moment. Two fingerprints
// are compared by value.
type Fingerprint struct {
	Healthy    bool
	Message    string // why it is unhealthy
	Provider   string // GetPluginInfo's name
	Version    string // GetPluginInfo's vendor_version
	Controller *ControllerCapabilities
	Node       *NodeCapabilities
}

// ControllerCapabilities are set when the driver has a controller service.
type ControllerCapabilities struct {
	CreateDelete          bool
	AttachDetach          bool // PUBLISH_UNPUBLISH_VOLUME
	AttachReadOnly        bool
	ListVolumes           bool
	GetCapacity           bool
	CreateDeleteSnapshot  bool
	ListSnapshots         bool
	Clone                 bool
	Expand                bool
	OnlineExpand          bool // of volumes in use: unless VolumeExpansion is OFFLINE alone
	VolumeCondition       bool
	SingleNodeMultiWriter bool
	Topology              bool // VOLUME_ACCESSIBILITY_CONSTRAINTS
}

// NodeCapabilities are set when the driver has a node service.
type NodeCapabilities struct {
	NodeID                string // the driver's own id of this node
	MaxVolumes            int64  // on this node; 0: no limit
	AccessibleTopology    Topology
	StageUnstage          bool // STAGE_UNSTAGE_VOLUME
	VolumeStats           bool
	Expand                bool
	VolumeCondition       bool
	SingleNodeMultiWriter bool
	VolumeMountGroup      bool
}

// ValidateRequest asks whether a driver can serve a volume with any one of the
// capabilities.
type ValidateRequest struct {
	Volume       Volume
	Capabilities []Capability
	Parameters   map[string]string
}

// AttachRequest is for Attacher.Attach. NodeID is the driver's id of the node.
type AttachRequest struct {
	Volume   Volume
	NodeID   string
	ReadOnly bool
}

// StageRequest is for Stager.Stage. Paths are as the driver sees them.
type StageRequest struct {
	Volume         Volume
	PublishContext map[string]string
	StagingPath    string
}

// PublishRequest is for Storage.Publish. Paths are as the driver sees them; StagingPath is empty if the
// driver does not stage.
type PublishRequest struct {
	Volume         Volume
	PublishContext map[string]string
	StagingPath    string
	TargetPath     string
	ReadOnly       bool
}

// CreateRequest is for Provisioner.Create. Capacities are in bytes, 0 is no
// bound. At most one of SnapshotID and CloneID (external ids) is set.
type CreateRequest struct {
	Name                     string
	CapacityMin, CapacityMax int64
	Capabilities             []Capability
	Parameters               map[string]string
	Secrets                  map[string]string
	SnapshotID, CloneID      string
	Topology                 TopologyRequirement
	// Full: the driver has less room than CapacityMin (Capacity). ResourceExhausted is its last word then, and the
	// plugin does not repeat the call in the hope that the driver gets some.
	Full bool
}

// CreateResponse describes the volume that was made. Capacity is in bytes, 0 if the driver does not report it.
type CreateResponse struct {
	ExternalID         string
	Capacity           int64
	Context            map[string]string
	AccessibleTopology []Topology
	Warnings           []string // for the operator, as long as the volume is registered
}

// ModifyRequest is for Modifier.Modify.
type ModifyRequest struct {
	Volume     Volume
	Parameters map[string]string
}

// CapacityRequest asks for the room for volumes with all of these properties; empty ones do not matter.
type CapacityRequest struct {
	Capabilities []Capability
	Parameters   map[string]string
	Topology     Topology // from where the volumes are accessible
}

// Capacity is the room that a driver has for new volumes, in bytes.
type Capacity struct {
	Available int64
	// MaximumVolume and MinimumVolume are the largest and the smallest volume that it makes; 0: not reported.
	MaximumVolume, MinimumVolume int64
}

// Page asks for a part of a list. Max 0 leaves the size to the driver.
type Page struct {
	Max   int    `proto:"max_entries"`
	Token string `proto:"starting_token"`
}

// ListResponse is one page of the driver's volumes. Next is empty at the end.
type ListResponse struct {
	Volumes []ListedVolume
	Next    string `proto:"next_token"`
}

// ListedVolume is a volume as the driver lists it.
type ListedVolume struct {
	ExternalID          string
	Capacity            int64
	Context             map[string]string
	PublishedNodeIDs    []string
	Condition           *Condition
	SnapshotID, CloneID string
}

// Condition is CSI's VolumeCondition.
type Condition struct {
	Abnormal bool
	Message  string
}

// ExpandRequest is for Expander.Expand. Capacities are in bytes, 0 is no bound.
type ExpandRequest struct {
	Volume                   Volume
	CapacityMin, CapacityMax int64
}

// ExpandResponse has the new size in bytes, and reports whether ExpandNode must follow if the volume is in use.
type ExpandResponse struct {
	Capacity              int64
	NodeExpansionRequired bool
}

// ExpandNodeRequest is for Expander.ExpandNode. Paths are as the driver sees them.
type ExpandNodeRequest struct {
	Volume                   Volume
	CapacityMin, CapacityMax int64
	VolumePath, StagingPath  string
}

// CreateSnapshotRequest is for Snapshotter.CreateSnapshot.
type CreateSnapshotRequest struct {
	Name       string
	Volume     Volume
	Parameters map[string]string
}

// Snapshot is a snapshot as the driver reports it. Size is in bytes, 0 if the driver does not report it; Ready
// says that it can be the source of a volume.
type Snapshot struct {
	ID               string `proto:"snapshot_id"`
	VolumeExternalID string
	Size             int64
	CreatedAt        time.Time
	Ready            bool
	Warnings         []string `proto:"-"` // of CreateSnapshot, for the operator
	GroupID          string   // of the group that it is part of; empty: none
}

// ListSnapshotsRequest asks for a page of snapshots, optionally of one volume or with one id.
type ListSnapshotsRequest struct {
	Page             Page `proto:",inline"`
	VolumeExternalID string
	SnapshotID       string
	Secrets          map[string]string
}

// ListSnapshotsResponse is one page of snapshots. Next is empty at the end.
type ListSnapshotsResponse struct {
	Snapshots []Snapshot
	Next      string `proto:"next_token"`
}

// CreateGroupSnapshotRequest is for GroupSnapshotter.CreateGroupSnapshot.
type CreateGroupSnapshotRequest struct {
	Name                string
	VolumeExternalIDs   []string
	Parameters, Secrets map[string]string
}

// GroupSnapshotRequest names a group. Some drivers need the ids of its snapshots too.
type GroupSnapshotRequest struct {
	ID          string `proto:"group_id"`
	SnapshotIDs []string
	Secrets     map[string]string
}

// GroupSnapshot are snapshots of several volumes as of one moment. Ready is true if all of them can be the source of a
// volume.
type GroupSnapshot struct {
	ID        string `proto:"group_id"`
	Snapshots []Snapshot
	CreatedAt time.Time
	Ready     bool
}

// StatsRequest is for StatsReader.VolumeStats. Paths are as the driver sees them.
type StatsRequest struct {
	Volume                  Volume
	VolumePath, StagingPath string
}

// Stats are a mounted volume's usage and condition.
type Stats struct {
	Usage     []Usage
	Condition *Condition
}

// Unit of a Usage.
type Unit string

// The units.
const (
	Bytes  Unit = "bytes"
	Inodes Unit = "inodes"
)

// Usage counts one resource of a volume in its unit.
type Usage struct {
	Unit                   Unit
	Available, Total, Used int64
}
