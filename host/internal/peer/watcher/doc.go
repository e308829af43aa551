// Package watcher has the leader's work for the whole cluster: it completes the release of claims, and
// removes claims, records and workloads' tokens that are no longer needed.
//
// What must stay true: each state of a claim is in the ledger before the next call is made; whether to detach
// is decided from the claims at that moment; there is one release at a time for a volume. Every call may be
// repeated, so a new leader begins with nothing but the ledger.
package watcher
