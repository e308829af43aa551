package claim

import "time"

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

// SigningKey signs what the cluster says of its workloads to others. There is one; it is
// made once.
type SigningKey struct {
	// ID is the key id in what is signed.
	ID string `json:"id"`
	// Public is the public key as a JSON Web Key (RFC 7517).
	Public []byte `json:"public"`
	// Sealed is the private key, sealed before it came here.
	Sealed    []byte    `json:"sealed"`
	CreatedAt time.Time `json:"created_at"`
}
