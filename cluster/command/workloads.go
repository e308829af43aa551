package command

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// RegisterVolume inserts a volume or updates its definition. It is refused if another volume has its driver and
// external id (claim.ErrDuplicate). The fields that the ledger sets (indexes, creation time, present modes) are kept
// from the existing record.
type RegisterVolume struct {
	Returns[RegisterVolumeResult]
	Volume claim.Volume `json:"volume"`
	// Mark is the index of the volume's mark, which ends with this command. Without it a marked volume stays as it is
	// (claim.ErrMarked).
	Mark uint64 `json:"mark,omitempty"`
}

// RegisterVolumeResult answers RegisterVolume.
type RegisterVolumeResult struct {
	Volume  claim.Volume
	Created bool
}

// DeregisterVolume removes a volume. It is refused while there are claims or a mark, unless Force.
type DeregisterVolume struct {
	Returns[DeregisterVolumeResult]
	Ref   claim.VolumeRef `json:"ref"`
	Force bool            `json:"force,omitempty"`
	// Deleted is the CreateIndex of the volume that the driver has deleted, which ends the act claim.Deleting. What has
	// the volume's name now may be another one (claim.ErrConflict).
	Deleted uint64 `json:"deleted,omitempty"`
}

// DeregisterVolumeResult answers DeregisterVolume. LeftBehind are claims that were deleted although they may still be
// mounted. More is true if the volume had more claims than one command may free, and still exists.
type DeregisterVolumeResult struct {
	Volume     claim.Volume
	LeftBehind []claim.Claim
	More       bool
}

// TakeMark marks a volume, or with an empty Ref the whole ledger, for an act that nobody may have it during. It is
// refused while there are claims (claim.ErrVolumeInUse) or another act is under way (claim.ErrMarked), and is
// claim.ErrConflict if the volume has changed since it was read.
type TakeMark struct {
	Returns[claim.Mark]
	Ref           claim.VolumeRef `json:"ref,omitzero"`
	IfModifyIndex uint64          `json:"if_modify_index,omitempty"`
	Mark          claim.Mark      `json:"mark"` // its act, by whom, and the arguments
}

// EndMark ends an act that has changed nothing. A mark that another caller has taken since stays.
type EndMark struct {
	Returns[claim.Mark]
	Ref   claim.VolumeRef `json:"ref,omitzero"`
	Index uint64          `json:"index"`
}

// ResealVolume replaces a volume's encrypted secrets by the same secrets under another key. It is
// claim.ErrConflict if the volume has changed since it was read.
type ResealVolume struct {
	Returns[claim.Volume]
	Ref           claim.VolumeRef `json:"ref"`
	IfModifyIndex uint64          `json:"if_modify_index"`
	SealedSecrets []byte          `json:"sealed_secrets"`
	KeyID         string          `json:"key_id"`
}

// StartWorkload records a running workload, takes all its claims or none, and records its tokens. Node and
// Workload of a claim or a token may be empty.
type StartWorkload struct {
	Returns[StartWorkloadResult]
	Ref    claim.WorkloadRef `json:"ref"`
	Node   string            `json:"node"`
	RunID  string            `json:"run_id,omitempty"` // claim.Run.ID
	Claims []claim.Claim     `json:"claims,omitempty"` // at most MaxClaims, one a volume
	Tokens []claim.Token     `json:"tokens,omitempty"` // at most MaxTokens
}

// StartWorkloadResult answers StartWorkload. Claims are in the order of the command, and Volumes[i] is the volume
// of Claims[i]. Created is false if the workload ran already with the same arguments.
type StartWorkloadResult struct {
	Workload claim.Workload
	Claims   []claim.Claim
	Volumes  []claim.Volume
	Created  bool
}

// AwaitWorkload records that a workload waits on a node for other workloads to end, wherever they run. It is
// refused (claim.ErrCycle) if one of them waits, directly or indirectly, for this one.
type AwaitWorkload struct {
	Returns[AwaitWorkloadResult]
	Ref   claim.WorkloadRef   `json:"ref"`
	Node  string              `json:"node"`
	RunID string              `json:"run_id,omitempty"` // claim.Run.ID
	After []claim.WorkloadRef `json:"after"`            // at most MaxAfter
}

// AwaitWorkloadResult answers AwaitWorkload. Left are the workloads that have not ended.
type AwaitWorkloadResult struct {
	Workload claim.Workload
	Left     []claim.WorkloadRef
}

// EndWorkload records that a workload has ended and begins to release its claims. It may be repeated.
//
// Node and Run restrict it to one run, for a caller that may be late: a run on another node, or a later one, is
// kept. Empty and 0: the present run. RunID names a run that must never begin: its StartWorkload may still be
// under way.
type EndWorkload struct {
	Returns[EndWorkloadResult]
	Ref  claim.WorkloadRef `json:"ref"`
	Node string            `json:"node,omitempty"`
	Run  uint64            `json:"run,omitempty"` // claim.Workload.CreateIndex
	// RunID is claim.Run.ID; it requires Node.
	RunID string `json:"run_id,omitempty"`
}

// EndWorkloadResult answers EndWorkload with the workload's present claims. Found is false if the ledger does not
// know the workload.
type EndWorkloadResult struct {
	Workload claim.Workload
	Claims   []claim.Claim
	Found    bool
}

// DeleteWorkloads removes workloads that ended before a time and have no claims left, the oldest MaxItems of them.
type DeleteWorkloads struct {
	Returns[DeleteWorkloadsResult]
	EndedBefore time.Time `json:"ended_before"`
}

// DeleteWorkloadsResult answers DeleteWorkloads. More is true if there may be more.
type DeleteWorkloadsResult struct {
	Deleted []claim.WorkloadRef
	More    bool
}

// IntendAttach records that a driver's controller is about to attach the volume of a claim to its node, on each claim
// that the volume has there: they share the attachment. A claim that is gone or being released is
// claim.ErrClaimNotFound.
type IntendAttach struct {
	Returns[claim.Claim]
	Volume   claim.VolumeRef   `json:"volume"`
	Workload claim.WorkloadRef `json:"workload"`
	Index    uint64            `json:"index"`
}

// AdvanceClaims checkpoints the release of claims: all items or none.
type AdvanceClaims struct {
	Returns[AdvanceClaimsResult]
	Items []Advance `json:"items"` // at most MaxItems
	// By is the operator who vouches that the node of the claims is down; empty if nobody had to.
	By string `json:"by,omitempty"`
}

// Advance moves one claim to a state. Freed deletes it.
type Advance struct {
	Volume   claim.VolumeRef   `json:"volume"`
	Workload claim.WorkloadRef `json:"workload"`
	Index    uint64            `json:"index,omitempty"` // the claim's fencing token; 0: the present claim
	To       claim.State       `json:"to"`
	// ForcedBy is the operator who had the claim's node unmount the volume without its driver; empty if nobody had to.
	ForcedBy string `json:"forced_by,omitempty"`
}

// AdvanceClaimsResult answers AdvanceClaims, item by item.
type AdvanceClaimsResult struct {
	Items []Advanced
}

// Advanced is one claim after AdvanceClaims. If it was freed, now or before, Gone is true and Claim is empty.
type Advanced struct {
	Claim claim.Claim
	Gone  bool
}

// PutToken records that Consul will be asked for a token or, for an existing record, what Consul answered: the
// accessor and the expiry.
type PutToken struct {
	Returns[PutTokenResult]
	Token claim.Token `json:"token"`
}

// PutTokenResult answers PutToken with the stored record.
type PutTokenResult struct {
	Token claim.Token
}

// DeleteTokens removes the records of tokens that Consul no longer has. Unknown ids are ignored.
type DeleteTokens struct {
	Returns[DeleteTokensResult]
	IDs []string `json:"ids"` // at most MaxItems
}

// DeleteTokensResult answers DeleteTokens with the records that existed.
type DeleteTokensResult struct {
	Deleted []claim.Token
}

// Start is the command that starts a run (StartWorkload).
func Start(run claim.Run, claims []claim.Claim, tokens ...claim.Token) *StartWorkload {
	return &StartWorkload{Ref: run.Ref, Node: run.Node, RunID: run.ID, Claims: claims, Tokens: tokens}
}

// Await is the command that has a run wait for other workloads (AwaitWorkload).
func Await(run claim.Run, after []claim.WorkloadRef) *AwaitWorkload {
	return &AwaitWorkload{Ref: run.Ref, Node: run.Node, RunID: run.ID, After: after}
}

// End is the command that ends a run (EndWorkload).
func End(run claim.Run) *EndWorkload {
	return &EndWorkload{Ref: run.Ref, Node: run.Node, Run: run.Index, RunID: run.ID}
}
