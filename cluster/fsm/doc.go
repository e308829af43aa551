// Package fsm joins raft and the ledger: it decodes log entries, hands them to
// cluster/state in batches, and takes and restores snapshots. It has no rules, no
// clock and no random number of its own.
package fsm
