// Package secrets seals volumes' secrets before they enter the raft log, and
// opens them for the call to the driver that needs them. What leaves this
// package sealed may lie in logs, snapshots and backups.
//
// A sealed value is
//
//	version (1 byte, 1) | key id (8 bytes) | nonce (12 bytes) | AES-256-GCM ciphertext and tag
//
// with the version, the key id and the caller's additional data authenticated.
// The additional data binds the value to its volume (ForVolume), so that one
// volume's secrets cannot be moved to another. The key id says which key is
// needed, so that a wrong key is told from a damaged value and keys can be
// rotated. Nonces are random: by NIST SP 800-38D, 8.3, that is safe for 2^32
// values under one key, far above the number of volume registrations.
//
// Keys lie in files of their own that only the agent's user can read: the first
// of a host that is alone in one, and those of a cluster in a directory. A file is
// made once and never written again: losing the last copy of a key loses the
// secrets that it seals. Which key seals is the ledger's to say (Use); the host's
// own first key does as long as the ledger names none.
//
// It imports the standard library and package durable only. Neither a key nor a secret
// may be in an error, and a Sealer and a Key print as ids.
package secrets
