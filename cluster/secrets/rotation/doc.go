// Package rotation manages the keys that seal secrets in the ledger. Every server has all of them. The leader makes
// them, rotates them, and re-encrypts what an old one seals.
//
// What must stay true:
//
//   - A key seals only after every server in raft's configuration has it on its disk (the first one: a majority).
//     So every later leader can decrypt what is in the ledger.
//   - The ledger records how far a rotation has come. It names keys in the order in which they were made: one
//     before the active key is old, one after it is about to become active. So a new leader can continue an
//     interrupted rotation.
//   - A key is removed only when nothing in the ledger needs it, and the ledger then accepts nothing that is sealed
//     with it (claim.SecretsKeys.CheckSealed).
//
// A standalone host names no key in its ledger until its first rotation.
package rotation
