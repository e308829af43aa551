package claim

import (
	"fmt"
	"regexp"
	"sync"
	"time"
)

// WorkloadStatus is the ledger's view of whether a workload runs.
type WorkloadStatus string

// The statuses.
const (
	Waiting WorkloadStatus = "waiting" // for the workloads in After to end; it has no claims
	Running WorkloadStatus = "running"
	Ended   WorkloadStatus = "ended"
)

// Run is one run of a workload on a node.
type Run struct {
	Ref  WorkloadRef
	Node string
	// ID is the node's name for the run, unique for all time; empty: not known.
	ID string
	// Index identifies the run in the ledger (Workload.CreateIndex); 0: not known.
	Index uint64
}

// Workload is the ledger's record of a workload: where it is, and whether it has ended. Only its node knows its
// steps and its process.
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
	// RunID is the id of this run (Run.ID).
	RunID string `json:"run_id,omitempty"`
	// StartedBy is the fingerprint of the keyed command that started this run (command.Fingerprint). It identifies
	// a repeated command.
	StartedBy []byte `json:"started_by,omitempty"`
	// LastEndedRunID is the id of the last run that was ended. Commands of that run that arrive later are refused.
	LastEndedRunID string `json:"over,omitempty"`
}

// Token is the record of a Consul token that a workload's service has, or may have: it is written before Consul is
// asked for the token, and removed once Consul has confirmed that the token is gone. It has no secret in it.
type Token struct {
	// ID is a UUID that was chosen before Consul was asked. For a minted token it is the accessor too.
	ID string `json:"id"`
	// Accessor in Consul; empty: not known, so the token may or may not exist.
	Accessor string      `json:"accessor,omitempty"`
	Workload WorkloadRef `json:"workload"`
	Node     string      `json:"node"`
	// Service is the service identity of the token.
	Service string `json:"service"`
	// Consul is the name of the agents' consul block.
	Consul string `json:"consul"`
	// ExpiresAt is when Consul expires the token; zero: never.
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	CreatedAt   time.Time `json:"created_at"`
	CreateIndex uint64    `json:"create_index"`
	ModifyIndex uint64    `json:"modify_index"`
}

// BelongsTo reports whether the token is of the workload's present run: the workload runs on the token's node, and
// the token was recorded with its start or later. All other tokens must be revoked.
func (t *Token) BelongsTo(w Workload) bool {
	return w.Status == Running && w.Ref == t.Workload && w.Node == t.Node && w.CreateIndex <= t.CreateIndex
}

// SamePurpose reports whether both are for the same service of the same workload on the same node, from the same
// Consul.
func (t *Token) SamePurpose(o Token) bool {
	return t.Workload == o.Workload && t.Node == o.Node && t.Service == o.Service && t.Consul == o.Consul
}

// uuid is how Consul writes an accessor (RFC 9562, in lower case).
var uuid = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
})

// Validate checks a token before it is recorded. The error is a *FieldError.
func (t *Token) Validate() error {
	if err := t.Workload.Validate(); err != nil {
		return err
	}
	c := checker{object: func() string { return fmt.Sprintf("token %q of workload %q", t.ID, t.Workload) }}
	if !uuid().MatchString(t.ID) {
		c.fail("id", "is not a UUID in lower case")
	}
	if t.Accessor != "" && !uuid().MatchString(t.Accessor) {
		c.fail("accessor", fmt.Sprintf("%q is not a UUID in lower case", t.Accessor))
	}
	c.id("node", t.Node)
	c.id("service", t.Service)
	c.id("consul", t.Consul)
	return c.err
}
