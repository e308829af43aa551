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
}
