// Package tokens is the authority over workloads' Consul tokens: it has them made,
// knows of each in the ledger, and ends those that nothing needs any more. It
// implements servicesteps.Tokens.
//
// What must stay true:
//
//   - A token is in the ledger before Consul is asked for it, and until Consul has said
//     that it is gone. What Consul has and the ledger does not is ended by the sweep.
//   - Consul is asked only for what the ledger says: a service of a workload that runs
//     on the node that asks. A caller cannot ask for a policy.
//   - One token is derived or revoked by one caller at a time; what was revoked is not
//     derived again.
//   - No secret is in a log, an event, an error or the ledger.
//
// A token that was minted has its ledger id as its accessor, so one command of the
// ledger is all that it needs. One that was given by login has an accessor of Consul's,
// noted afterwards; it is ended with its own secret, and by itself where nobody has that.
//
// It reaches Consul through plugins of the kind identity alone. It imports cluster, the
// SDK's identity and service, and secrets.
package tokens
