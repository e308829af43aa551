// Package claim defines claims on volumes and the rules by which they are taken: types and pure functions. The
// caller passes in the present claims and the time that the leader stamped.
//
// It reads no clock, draws no random number and does no I/O: every server must come to the same result from the
// same log.
package claim

import (
	"slices"
	"time"
)

// AccessMode is CSI's VolumeCapability.AccessMode, by Nomad's names.
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

// ReadOnly reports that no claim with this mode may write.
func (m AccessMode) ReadOnly() bool { return m == SingleNodeReaderOnly || m == MultiNodeReaderOnly }

// AttachmentMode is the access type of CSI's VolumeCapability.
type AttachmentMode string

// The attachment modes.
const (
	FileSystem  AttachmentMode = "file-system"
	BlockDevice AttachmentMode = "block-device"
)

// AttachmentModes lists every attachment mode.
var AttachmentModes = []AttachmentMode{FileSystem, BlockDevice}

// Mode is what a workload may do with the volume. It never changes while the claim exists, since unpublishing
// needs it.
type Mode string

// The modes. GC is for callers that ask for a release without knowing the mode.
const (
	Read  Mode = "read"
	Write Mode = "write"
	GC    Mode = "gc"
)

// State is the progress of a release. Each state is written to the ledger before the next call to a driver is
// made.
type State string

// The states in order. A freed claim is no longer in the ledger.
const (
	Taken        State = "taken"
	Unpublishing State = "unpublishing"
	NodeDetached State = "node-detached"
	Freed        State = "freed"
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
	// AttachedBy is the driver whose controller may have attached the volume to the node; empty: none was asked to. It is
	// set before the controller is called, and the claim is freed only when the controller has answered a detach.
	AttachedBy string `json:"attached_by,omitempty"`
	// Index is the ledger index at which the claim was taken; it serves as fencing token.
	Index      uint64    `json:"index,omitempty"`
	TakenAt    time.Time `json:"taken_at,omitzero"`
	ModifiedAt time.Time `json:"modified_at,omitzero"`
	// ForcedBy is the operator who vouched that the node is down, or had it unmount the volume without its driver;
	// ForcedAt when.
	ForcedBy string    `json:"forced_by,omitempty"`
	ForcedAt time.Time `json:"forced_at,omitzero"`
}

// States lists the states in the order in which a claim passes through them.
var States = []State{Taken, Unpublishing, NodeDetached, Freed}

// Valid reports whether s is a state.
func (s State) Valid() bool { return slices.Contains(States, s) }

// Releasing reports whether the claim is being released: someone must finish that.
func (s State) Releasing() bool {
	return s.Valid() && s != Taken && s != Freed
}

// Before reports whether s comes before o.
func (s State) Before(o State) bool {
	return slices.Index(States, s) < slices.Index(States, o)
}

// CanAdvance reports whether a claim may go from one state to another. It only moves forward. States may be
// skipped, since not every driver needs every call. Staying is allowed, so that a checkpoint can be repeated.
func CanAdvance(from, to State) bool {
	return from.Valid() && to.Valid() && !to.Before(from)
}
