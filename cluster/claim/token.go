package claim

import (
	"fmt"
	"regexp"
	"time"
)

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

// SigningKey signs what the cluster says of its workloads to others. There is one; it is
// made once.
type SigningKey struct {
	// ID is the key id in what is signed.
	ID string `json:"id"`
	// Public is the public key as a JSON Web Key (RFC 7517).
	Public []byte `json:"public"`
	// Sealed is the private key, sealed before it came here with the key SecretsKey; empty:
	// with one that the ledger did not name yet.
	Sealed     []byte    `json:"sealed"`
	SecretsKey string    `json:"secrets_key,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
}

// maxKey bounds each part of a signing key, in bytes.
const maxKey = 4 << 10

// Validate checks that nothing is missing. The error is a *FieldError.
func (k *SigningKey) Validate() error {
	c := checker{object: fmt.Sprintf("signing key %q", k.ID)}
	c.id("id", k.ID)
	for _, part := range []struct {
		field string
		size  int
	}{{"public", len(k.Public)}, {"sealed", len(k.Sealed)}} {
		if part.size == 0 || part.size > maxKey {
			c.fail(part.field, fmt.Sprintf("has %d bytes: 1 to %d are allowed", part.size, maxKey))
		}
	}
	return c.err
}
