package claim

import (
	"fmt"
	"regexp"
	"time"
)

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

// Token is the ledger's record of a Consul token that a workload's service was given,
// or may have been given: it is written before Consul is asked, and goes when Consul
// has said that the token is gone. It has no secret in it.
type Token struct {
	// ID is a UUID that was chosen before Consul was asked. Of a token that was minted it
	// is the accessor too.
	ID string `json:"id"`
	// Accessor in Consul; empty: not known, so the token may or may not be.
	Accessor string      `json:"accessor,omitempty"`
	Workload WorkloadRef `json:"workload"`
	Node     string      `json:"node"`
	// Service is the service identity of the token.
	Service string `json:"service"`
	// Consul is the name of the agents' consul block.
	Consul string `json:"consul"`
	// ExpiresAt is when Consul ends it by itself; zero: never.
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	CreatedAt   time.Time `json:"created_at"`
	CreateIndex uint64    `json:"create_index"`
	ModifyIndex uint64    `json:"modify_index"`
}

// BelongsTo says whether the token is of the workload's present run: it runs on the
// token's node, and the token was noted with its start or later. All other tokens are
// to be revoked.
func (t *Token) BelongsTo(w Workload) bool {
	return w.Status == Running && w.Ref == t.Workload && w.Node == t.Node && w.CreateIndex <= t.CreateIndex
}

// SamePurpose says whether both are for the same service of the same workload on the
// same node, from the same Consul.
func (t *Token) SamePurpose(o Token) bool {
	return t.Workload == o.Workload && t.Node == o.Node && t.Service == o.Service && t.Consul == o.Consul
}

// uuid is how Consul writes an accessor (RFC 9562, in lower case).
var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// Validate checks a token as it is to be noted. The error is a *FieldError.
func (t *Token) Validate() error {
	if err := t.Workload.Validate(); err != nil {
		return err
	}
	c := checker{object: fmt.Sprintf("token %q of workload %q", t.ID, t.Workload)}
	if !uuid.MatchString(t.ID) {
		c.fail("id", "is not a UUID in lower case")
	}
	if t.Accessor != "" && !uuid.MatchString(t.Accessor) {
		c.fail("accessor", fmt.Sprintf("%q is not a UUID in lower case", t.Accessor))
	}
	c.id("node", t.Node)
	c.id("service", t.Service)
	c.id("consul", t.Consul)
	return c.err
}
