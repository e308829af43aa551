// Package rotation looks after the keys that seal secrets in the ledger: every server has
// all of them, and the leader makes them, changes them and seals anew what an old one
// seals.
//
// What must stay true:
//
//   - A key seals only after every server in raft's configuration has it on its disk (the
//     first one: a majority). So whoever leads next can open what is in the ledger.
//   - The ledger says how far a change of keys has come, and the keys that it names stand in
//     the order in which they were made: one before the active key is old, one after it is
//     about to become active. So a leader goes on where the one before was cut off.
//   - A key is removed only when nothing in the ledger needs it, and the ledger takes
//     nothing that is sealed with it any more (claim.SecretsKeys.CheckSealed).
//
// A host that is alone names no key in its ledger until its first change of keys.
package rotation
