package command

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// RegisterVolume inserts a volume or updates its definition. What the ledger
// itself keeps (indexes, times of creation, current modes) is taken from the
// standing record.
type RegisterVolume struct {
	Stamp
	Volume claim.Volume `json:"volume"`
}

// RegisterVolumeResult answers RegisterVolume.
type RegisterVolumeResult struct {
	Volume  claim.Volume
	Created bool
}

// DeregisterVolume removes a volume. It refuses while claims stand, unless Force.
type DeregisterVolume struct {
	Stamp
	Ref   claim.VolumeRef `json:"ref"`
	Force bool            `json:"force,omitempty"`
}

// DeregisterVolumeResult answers DeregisterVolume. LeftBehind are the claims
// whose records went although their mounts may stand. More says that the volume
// had more claims than one command may free, and is still there.
type DeregisterVolumeResult struct {
	Volume     claim.Volume
	LeftBehind []claim.Claim
	More       bool
}

// ResealVolume replaces a volume's sealed secrets by the same ones under another key. It is
// claim.ErrConflict where the volume is not the one that was read.
type ResealVolume struct {
	Stamp
	Ref           claim.VolumeRef `json:"ref"`
	IfModifyIndex uint64          `json:"if_modify_index"`
	SealedSecrets []byte          `json:"sealed_secrets"`
	KeyID         string          `json:"key_id"`
}

// ResealVolumeResult answers ResealVolume.
type ResealVolumeResult struct {
	Volume claim.Volume
}

// StartWorkload records a running workload, takes all its claims, or none, and notes
// its tokens. Node and Workload of a claim and of a token may be left empty.
type StartWorkload struct {
	Stamp
	Ref    claim.WorkloadRef `json:"ref"`
	Node   string            `json:"node"`
	RunID  string            `json:"run_id,omitempty"` // claim.Run.ID
	Claims []claim.Claim     `json:"claims,omitempty"` // at most MaxClaims, one a volume
	Tokens []claim.Token     `json:"tokens,omitempty"` // at most MaxTokens
}

// StartWorkloadResult answers StartWorkload. Claims are in the order asked for, and
// Volumes[i] is the volume of Claims[i]. Created is false when the workload ran
// already with the same arguments.
type StartWorkloadResult struct {
	Workload claim.Workload
	Claims   []claim.Claim
	Volumes  []claim.Volume
	Created  bool
}

// AwaitWorkload records that a workload waits on a node for others to end, wherever they
// run. It is refused (claim.ErrCycle) where one of them waits, over others, for this one.
type AwaitWorkload struct {
	Stamp
	Ref   claim.WorkloadRef   `json:"ref"`
	Node  string              `json:"node"`
	RunID string              `json:"run_id,omitempty"` // claim.Run.ID
	After []claim.WorkloadRef `json:"after"`            // at most MaxAfter
}

// AwaitWorkloadResult answers AwaitWorkload with those that have not ended.
type AwaitWorkloadResult struct {
	Workload claim.Workload
	Left     []claim.WorkloadRef
}

// EndWorkload records that a workload has ended and sends its claims on their way
// out. It may be repeated.
//
// Node and Run say which run of it has ended, for a caller that may be late: one that
// runs elsewhere, or again, is left alone. Empty and 0: whichever is there. RunID says which
// one is never to begin: its start may still be on its way.
type EndWorkload struct {
	Stamp
	Ref  claim.WorkloadRef `json:"ref"`
	Node string            `json:"node,omitempty"`
	Run  uint64            `json:"run,omitempty"` // claim.Workload.CreateIndex
	// RunID is claim.Run.ID; it needs Node.
	RunID string `json:"run_id,omitempty"`
}

// EndWorkloadResult answers EndWorkload: the workload's claims as they stand now.
// Found is false where the ledger knows no such workload.
type EndWorkloadResult struct {
	Workload claim.Workload
	Claims   []claim.Claim
	Found    bool
}

// DeleteWorkloads removes workloads that ended before a time and have no claim
// left, the oldest MaxItems of them.
type DeleteWorkloads struct {
	Stamp
	EndedBefore time.Time `json:"ended_before"`
}

// DeleteWorkloadsResult answers DeleteWorkloads. More says that there may be more.
type DeleteWorkloadsResult struct {
	Deleted []claim.WorkloadRef
	More    bool
}

// AdvanceClaims checkpoints claims on their way out: all items or none.
type AdvanceClaims struct {
	Stamp
	Items []Advance `json:"items"` // at most MaxItems
	// By is the operator who vouches that the claims' node is down; empty where
	// nobody had to.
	By string `json:"by,omitempty"`
}

// Advance moves one claim to a state. Freed deletes it.
type Advance struct {
	Volume   claim.VolumeRef   `json:"volume"`
	Workload claim.WorkloadRef `json:"workload"`
	Index    uint64            `json:"index,omitempty"` // the claim's fencing token; 0: whichever stands
	To       claim.State       `json:"to"`
}

// AdvanceClaimsResult answers AdvanceClaims, item by item.
type AdvanceClaimsResult struct {
	Items []Advanced
}

// Advanced is one claim after AdvanceClaims. Claim is empty and Gone is true where
// it was freed, now or before.
type Advanced struct {
	Claim claim.Claim
	Gone  bool
}

// PutToken notes that Consul will be asked for a token or, of one that stands, what
// Consul answered: its accessor and when it ends.
type PutToken struct {
	Stamp
	Token claim.Token `json:"token"`
}

// PutTokenResult answers PutToken with the record that stands now.
type PutTokenResult struct {
	Token claim.Token
}

// DeleteTokens forgets tokens that Consul does not have any more. Those that are not
// there count as done.
type DeleteTokens struct {
	Stamp
	IDs []string `json:"ids"` // at most MaxItems
}

// DeleteTokensResult answers DeleteTokens with those that were there.
type DeleteTokensResult struct {
	Deleted []claim.Token
}
