// Package watcher is what the leader does for the whole cluster: it brings
// claims that are on their way out to their end, and clears away what nothing
// needs any more: claims, records, and workloads' tokens.
//
// What must stay true: each state of a claim is in the ledger before the next
// call is made; whether to detach is decided from the claims as they stand at that
// moment; there is one release at a time for a volume. Every call may be repeated, so
// a new leader begins with nothing but the ledger.
package watcher
