package command

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// PutNode records a node's report about itself, and updates the counts of its drivers.
//
// A node whose secret's hash is already recorded can only be changed with the same hash
// (claim.ErrNodeSecret). A node that was down or disconnected becomes ready.
type PutNode struct {
	Returns[PutNodeResult]
	Node claim.Node `json:"node"`
}

// PutNodeResult answers PutNode. Changed is false if the report is the same as before.
type PutNodeResult struct {
	Node    claim.Node
	Changed bool
}

// DeleteNode removes a node and its report of its drivers. It is refused (claim.ErrNodeInUse) while the node has
// claims, or workloads that run or wait there.
type DeleteNode struct {
	Returns[DeleteNodeResult]
	Name string `json:"name"`
	// IfDown is the StatusIndex of a node that was seen to be down: if it has come back since, it is kept and
	// counts as not found. 0: whatever its status.
	IfDown uint64 `json:"if_down,omitempty"`
}

// DeleteNodeResult answers DeleteNode.
type DeleteNodeResult struct {
	Found bool
}

// SetNodeStatus records whether a node is heard from. An unknown node is claim.ErrNodeNotFound. A node that is
// down stays down when it is reported as disconnected.
//
// With down, its workloads are ended and its claims become node-detached, at most MaxItems claims per command. More is
// true if there are others, for the next command with Continues and After from the result; that command does nothing if
// the node has come back meanwhile. Starting over without Continues and After is correct too.
type SetNodeStatus struct {
	Returns[SetNodeStatusResult]
	Name   string           `json:"name"`
	Status claim.NodeStatus `json:"status"`
	// By is the operator who vouches that the node is down; empty if nobody had to.
	By        string `json:"by,omitempty"`
	Continues uint64 `json:"continues,omitempty"` // Node.StatusIndex of the previous result
	After     string `json:"after,omitempty"`     // Next of the previous result
}

// SetNodeStatusResult answers SetNodeStatus.
type SetNodeStatusResult struct {
	Node  claim.Node
	Ended []claim.WorkloadRef
	Freed []claim.Claim // that became node-detached
	More  bool
	Next  string // After of the next command
}

// SetNodeDuty records what an operator wants of a node: whether it starts workloads, of which namespaces, and whether
// it is drained.
// nil fields stay as they are. The node sets Drain.DoneAt to report that nothing is left; StartedAt, if given,
// says of which drain. Namespaces binds the node to these (claim.Node); empty: to none. Approve and Revoke name
// a driver (claim.Node.ControllerOf).
type SetNodeDuty struct {
	Returns[claim.Node]
	Name       string       `json:"name"`
	Ineligible *bool        `json:"ineligible,omitempty"`
	Drain      *claim.Drain `json:"drain,omitempty"`
	StopDrain  bool         `json:"stop_drain,omitempty"`
	Namespaces *[]string    `json:"namespaces,omitempty"`
	Approve    string       `json:"approve,omitempty"`
	Revoke     string       `json:"revoke,omitempty"`
}

// DeleteDrivers removes the drivers that no node has, no volume names and that have not changed since
// IfUnusedBefore.
type DeleteDrivers struct {
	Returns[DeleteDriversResult]
	IDs            []string  `json:"ids"` // at most MaxItems
	IfUnusedBefore time.Time `json:"if_unused_before"`
}

// DeleteDriversResult answers DeleteDrivers.
type DeleteDriversResult struct {
	Deleted []string
}

// Identify sets the identity of the cluster. Only the first one is stored.
type Identify struct {
	Returns[claim.Cluster]
	Cluster claim.Cluster `json:"cluster"`
}

// PutLiveness records the lease that the leader promises to nodes from now on.
type PutLiveness struct {
	Returns[claim.Liveness]
	Liveness claim.Liveness `json:"liveness"`
}

// SetAutopilot changes how the leader manages the servers.
type SetAutopilot struct {
	Returns[claim.Autopilot]
	Change claim.AutopilotChange `json:"change"`
	// First are the leader's settings, which are changed if the ledger has none.
	First claim.Autopilot `json:"first"`
}

// PutSigningKey sets the signing key of the cluster. Only the first one is stored.
type PutSigningKey struct {
	Returns[claim.SigningKey]
	Key claim.SigningKey `json:"key"`
	// IfSealed re-encrypts the stored key: Sealed and SecretsKey are replaced if the stored Sealed equals IfSealed
	// (otherwise claim.ErrConflict). Empty: nothing is replaced.
	IfSealed []byte `json:"if_sealed,omitempty"`
}

// RotateSigningKey begins a rotation of the signing key: Next is published from now on. A rotation that is under way
// stays as it is. claim.ErrConflict: there is no key yet, or Next is it.
type RotateSigningKey struct {
	Returns[claim.KeyRotation]
	Next claim.SigningKey `json:"next"`
}

// AdvanceKeyRotation ends a phase of the rotation that concerns a key (otherwise claim.ErrConflict).
type AdvanceKeyRotation struct {
	Returns[claim.KeyRotation]
	Key   string              `json:"key"`
	Phase claim.RotationPhase `json:"phase"`
}

// PutSecretsKey records that servers have a key that encrypts secrets, or that a key was removed. The key itself
// is never in the ledger.
type PutSecretsKey struct {
	Returns[claim.SecretsKeys]
	ID string `json:"id"`
	// Active makes it the key that encrypts from now on.
	Active bool `json:"active,omitempty"`
	// Gone removes a key. The active key cannot be removed (claim.ErrConflict).
	Gone bool `json:"gone,omitempty"`
}
