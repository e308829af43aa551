// Package state keeps the ledger in Badger: volumes, claims, workloads, nodes and
// what they say of drivers, tokens, and the ACL.
//
// What must stay true:
//
//   - Applying is deterministic: no clock, no random number. The same entries in the
//     same order give the same ledger on every server.
//   - A command either changes all that it should or nothing: it decides first
//     and writes afterwards. A failure of the store is not a refusal; it
//     stops the store, since the ledger would otherwise miss an entry.
//   - The index of the last applied entry is in the same transaction as its
//     changes, and an entry that was applied is skipped.
//   - No write reads more than it needs: a command takes as long with 100,000
//     volumes as with 100.
//   - What is read is the reader's own: changing it never changes the ledger.
//
// The raft log is the durable copy; Badger does not sync. After an unclean end of
// the whole machine (another boot id) what is on disk is thrown away, and raft
// rebuilds it from its snapshot and its log.
//
// Badger does not say of every damaged file that it is damaged, so all of them are read before it
// opens them; a ledger with a damaged file is thrown away too, and so is a plain one when a key
// is given.
//
// The package imports Badger, cluster/claim, cluster/acl and cluster/command.
package state
