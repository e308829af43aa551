package claim

import "time"

// AccessMode is CSI's VolumeCapability.AccessMode under Nomad's names.
type AccessMode string

// The access modes (CSI spec, VolumeCapability.AccessMode.Mode).
const (
	SingleNodeReaderOnly   AccessMode = "single-node-reader-only"
	SingleNodeWriter       AccessMode = "single-node-writer"
	SingleNodeSingleWriter AccessMode = "single-node-single-writer"
	SingleNodeMultiWriter  AccessMode = "single-node-multi-writer"
	MultiNodeReaderOnly    AccessMode = "multi-node-reader-only"
	MultiNodeSingleWriter  AccessMode = "multi-node-single-writer"
	MultiNodeMultiWriter   AccessMode = "multi-node-multi-writer"
)

// AccessModes lists every access mode.
var AccessModes = []AccessMode{
	SingleNodeReaderOnly, SingleNodeWriter, SingleNodeSingleWriter, SingleNodeMultiWriter,
	MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter,
}

// AttachmentMode is the access type of CSI's VolumeCapability.
type AttachmentMode string

// The attachment modes.
const (
	FileSystem  AttachmentMode = "file-system"
	BlockDevice AttachmentMode = "block-device"
)

// AttachmentModes lists every attachment mode.
var AttachmentModes = []AttachmentMode{FileSystem, BlockDevice}

// Mode is what a workload may do with the volume. It never changes while the
// claim lives: unpublish needs it.
type Mode string

// The modes. GC is for callers that ask for a release and do not know the mode.
const (
	Read  Mode = "read"
	Write Mode = "write"
	GC    Mode = "gc"
)

// State is how far a claim is on its way out. Each is written to the ledger
// before the next call is made.
type State string

// The states in their order; a freed claim is not in the ledger any more.
const (
	Taken              State = "taken"
	Unpublishing       State = "unpublishing"
	NodeDetached       State = "node-detached"
	ControllerDetached State = "controller-detached"
	ReadyToFree        State = "ready-to-free"
	Freed              State = "freed"
)

// Claim is one workload's right to one volume on one node.
type Claim struct {
	Volume         VolumeRef      `json:"volume"`
	Workload       WorkloadRef    `json:"workload,omitzero"`
	Node           string         `json:"node,omitempty"`
	DriverNodeID   string         `json:"driver_node_id,omitempty"` // the driver's own id of the node
	Mode           Mode           `json:"mode"`
	AccessMode     AccessMode     `json:"access_mode"`
	AttachmentMode AttachmentMode `json:"attachment_mode"`
	State          State          `json:"state,omitempty"`
	// Index is the ledger index at which the claim was taken: its fencing token.
	Index      uint64    `json:"index,omitempty"`
	TakenAt    time.Time `json:"taken_at,omitzero"`
	ModifiedAt time.Time `json:"modified_at,omitzero"`
	// ForcedBy and ForcedAt say which operator vouched that the node is down.
	ForcedBy string    `json:"forced_by,omitempty"`
	ForcedAt time.Time `json:"forced_at,omitzero"`
}
