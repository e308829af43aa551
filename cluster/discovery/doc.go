// Package discovery lets agents find one another with serf: who is there, in which role,
// and at which address. It carries no claim and no promise: what it says may be late or
// wrong, and nothing that must be right depends on it.
//
// It knows nothing of raft and of the ledger.
package discovery
