package claim

import "time"

// WorkloadStatus is whether a workload runs, as far as the ledger was told.
type WorkloadStatus string

// The statuses.
const (
	Waiting WorkloadStatus = "waiting" // for those in After to end; it holds no claim
	Running WorkloadStatus = "running"
	Ended   WorkloadStatus = "ended"
)

// Run is one run of a workload on a node.
type Run struct {
	Ref  WorkloadRef
	Node string
	// ID is the node's own name for the run, which no other has; empty: it has none, as one that an
	// older version began.
	ID string
	// Index is the ledger's number of the run (Workload.CreateIndex); 0: not known.
	Index uint64
}

// Workload is the ledger's record of a workload: that it exists, where, and
// whether it has ended. Its steps and its process are its node's business.
type Workload struct {
	Ref    WorkloadRef    `json:"ref"`
	Node   string         `json:"node"`
	Status WorkloadStatus `json:"status"`
	// After are the workloads that this one waits for, or waited for.
	After       []WorkloadRef `json:"after,omitempty"`
	CreatedAt   time.Time     `json:"created_at"`
	EndedAt     time.Time     `json:"ended_at,omitzero"`
	CreateIndex uint64        `json:"create_index"`
	ModifyIndex uint64        `json:"modify_index"`
	// StartedBy is the fingerprint of the keyed command that started this run (command.Fingerprint):
	// one that is sent again is known by it.
	StartedBy []byte `json:"started_by,omitempty"`
	// Over is the id of the run that was ended last: what its node has asked for it before, and
	// arrives only now, is refused.
	Over string `json:"over,omitempty"`
}
