package command

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// Bounds of one command. They keep each within one transaction of the ledger.
const (
	// MaxClaims bounds the claims of one workload.
	MaxClaims = 128
	// MaxTokens bounds the tokens that are noted with a workload's start.
	MaxTokens = 64
	// MaxItems bounds the items of AdvanceClaims, DeleteDrivers, DeleteTokens and
	// DeregisterVolume's claims; DeleteWorkloads stops at as many.
	MaxItems = 128
	// MaxAfter bounds the workloads that one waits for.
	MaxAfter = 32
)

// Command is one of this package's commands.
type Command interface {
	at() time.Time
	stamp(time.Time)
	key() string
	setKey(string)
	sum() []byte
	setSum([]byte)
}

// Stamp is embedded in every command.
type Stamp struct {
	// At is the leader's time when it took the command in.
	At time.Time `json:"at"`
	// Key makes the command safe to repeat: one that was applied under the same key within
	// the last hour, and 262,144 entries of the log, is answered with its result and changes
	// nothing. A StartWorkload is known for as long as its run is the workload's last. An id
	// (claim.CheckID) that nobody can guess; empty: none.
	Key string `json:"command_key,omitempty"`

	fingerprint []byte // of the entry that the command was read from
}

func (s *Stamp) at() time.Time { return s.At }

func (s *Stamp) stamp(at time.Time) { s.At = at }

func (s *Stamp) key() string { return s.Key }

func (s *Stamp) setKey(key string) { s.Key, s.fingerprint = key, nil }

func (s *Stamp) sum() []byte { return s.fingerprint }

func (s *Stamp) setSum(sum []byte) { s.fingerprint = sum }

// SetAt stamps a command with the leader's time.
func SetAt(c Command, at time.Time) { c.stamp(at) }

// At is the leader's time when it took the command in.
func At(c Command) time.Time { return c.at() }

// Key is the command's key; empty: it has none.
func Key(c Command) string { return c.key() }

// SetKey gives a command the key under which it may be repeated.
func SetKey(c Command, key string) { c.setKey(key) }

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

// Identify gives the cluster its identity, once and for all: the first one wins.
type Identify struct {
	Stamp
	Cluster claim.Cluster `json:"cluster"`
}

// IdentifyResult answers Identify with the identity that stands.
type IdentifyResult struct {
	Cluster claim.Cluster
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
