// Package state keeps the ledger in Badger: volumes, claims, workloads, nodes and their drivers, tokens, and the
// ACL.
//
// What must stay true:
//
//   - Applying is deterministic: no clock, no random number. The same entries in the
//     same order give the same ledger on every server.
//   - A command changes all that it should or nothing: it decides first and writes
//     afterwards. A failure of the store is not a refusal; it stops the store, since
//     the ledger would otherwise miss an entry.
//   - The index of the last applied entry is written in the same transaction as its
//     changes, and an entry that was applied is skipped.
//   - A command reads no more than it needs: it takes as long with 100,000 volumes as
//     with 100.
//   - What is read belongs to the reader: changing it never changes the ledger.
//
// The raft log is the durable copy; Badger does not sync. After a crash of the machine (another boot id) the files
// are discarded, and raft rebuilds the ledger from its snapshot and its log.
//
// Badger does not report every damaged file, so all files are verified before it opens them. A ledger with a
// damaged file is discarded too, and so is a plain one when a key is given.
package state
