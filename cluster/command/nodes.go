package command

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// PutNode records what a node says of itself, and with it the counts of its
// drivers.
//
// A node that the ledger has a secret's hash of is written only with the same one
// (claim.ErrNodeSecret). A node that was down or disconnected is ready again.
type PutNode struct {
	Stamp
	Node claim.Node `json:"node"`
}

// PutNodeResult answers PutNode. Changed is false where the node says what it
// said before.
type PutNodeResult struct {
	Node    claim.Node
	Changed bool
}

// DeleteNode removes a node and what it said of drivers. Its claims stay, unless IfUnused
// refuses (claim.ErrNodeInUse) while there are claims on it, or workloads that run or wait there.
type DeleteNode struct {
	Stamp
	Name     string `json:"name"`
	IfUnused bool   `json:"if_unused,omitempty"`
	// IfDown is the StatusIndex of a node that was seen to be down: one that has come back
	// since is left alone, and counts as not found. 0: whatever its status.
	IfDown uint64 `json:"if_down,omitempty"`
}

// DeleteNodeResult answers DeleteNode.
type DeleteNodeResult struct {
	Found bool
}

// SetNodeStatus records whether a node is heard from. An unknown node is claim.ErrNodeNotFound.
// A node that is down stays so when it is said to be disconnected.
//
// With down, its workloads are ended and its claims are node-detached, at most
// MaxItems claims a command: More says that there are others. They are for the next command,
// with Continues and After from the result; it does nothing where the node has come back
// meanwhile. Beginning again without them is right too.
type SetNodeStatus struct {
	Stamp
	Name   string           `json:"name"`
	Status claim.NodeStatus `json:"status"`
	// By is the operator who vouches that the node is down; empty where nobody had to.
	By        string `json:"by,omitempty"`
	Continues uint64 `json:"continues,omitempty"` // Node.StatusIndex of the result before
	After     string `json:"after,omitempty"`     // Next of the result before
}

// SetNodeStatusResult answers SetNodeStatus.
type SetNodeStatusResult struct {
	Node  claim.Node
	Ended []claim.WorkloadRef
	Freed []claim.Claim // that were let go of
	More  bool
	Next  string // where the next command goes on
}

// SetNodeDuty records what an operator wants of a node: whether it starts workloads, and
// whether it is drained. nil: as it is. The node reports with Drain.DoneAt that nothing is
// left; StartedAt, where given, says of which drain that is.
type SetNodeDuty struct {
	Stamp
	Name       string       `json:"name"`
	Ineligible *bool        `json:"ineligible,omitempty"`
	Drain      *claim.Drain `json:"drain,omitempty"`
	StopDrain  bool         `json:"stop_drain,omitempty"`
}

// SetNodeDutyResult answers SetNodeDuty.
type SetNodeDutyResult struct {
	Node claim.Node
}

// DeleteDrivers removes those of the drivers that no node has, no volume names and
// nothing changed since IfUnusedBefore.
type DeleteDrivers struct {
	Stamp
	IDs            []string  `json:"ids"` // at most MaxItems
	IfUnusedBefore time.Time `json:"if_unused_before"`
}

// DeleteDriversResult answers DeleteDrivers.
type DeleteDriversResult struct {
	Deleted []string
}

// Identify gives the cluster its identity, once and for all: the first one wins.
type Identify struct {
	Stamp
	Cluster claim.Cluster `json:"cluster"`
}

// IdentifyResult answers Identify with the identity that stands.
type IdentifyResult struct {
	Cluster claim.Cluster
}

// PutLiveness records what the leader promises nodes from now on.
type PutLiveness struct {
	Stamp
	Liveness claim.Liveness `json:"liveness"`
}

// PutLivenessResult answers PutLiveness with what was promised before.
type PutLivenessResult struct {
	Before claim.Liveness
}

// SetAutopilot changes how whoever leads looks after the servers.
type SetAutopilot struct {
	Stamp
	Change claim.AutopilotChange `json:"change"`
	// First is what is changed where the ledger has nothing: what the leader goes by.
	First claim.Autopilot `json:"first"`
}

// SetAutopilotResult answers SetAutopilot with what counts from now on.
type SetAutopilotResult struct {
	Autopilot claim.Autopilot
}

// PutSigningKey gives the cluster its signing key, once and for all: the first one
// wins.
type PutSigningKey struct {
	Stamp
	Key claim.SigningKey `json:"key"`
	// IfSealed replaces Sealed and SecretsKey of the one that stands, where it was sealed so
	// (claim.ErrConflict): the same key under another secrets key. Empty: nothing is replaced.
	IfSealed []byte `json:"if_sealed,omitempty"`
}

// PutSigningKeyResult answers PutSigningKey with the key that stands.
type PutSigningKeyResult struct {
	Key claim.SigningKey
}

// PutSecretsKey records that servers have a key that seals secrets, or that one is gone. The
// key itself is never in the ledger.
type PutSecretsKey struct {
	Stamp
	ID string `json:"id"`
	// Active makes it the one that seals from now on.
	Active bool `json:"active,omitempty"`
	// Gone forgets a key that is not active (claim.ErrConflict).
	Gone bool `json:"gone,omitempty"`
}

// PutSecretsKeyResult answers PutSecretsKey with the keys as they are now.
type PutSecretsKeyResult struct {
	Keys claim.SecretsKeys
}
