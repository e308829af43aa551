// Package secrets encrypts (seals) volumes' secrets before they enter the raft log, and decrypts (unseals) them for
// the driver call that needs them. Sealed values may appear in logs, snapshots and backups.
//
// A sealed value is
//
//	version (1 byte, 1) | key id (8 bytes) | nonce (12 bytes) | AES-256-GCM ciphertext and tag
//
// with the version, the key id and the caller's additional data authenticated. The additional data binds the value to
// its volume (ForVolume), so that one volume's secrets cannot be moved to another. The key id says which key is
// needed, so that a wrong key can be told from a damaged value and keys can be rotated. Nonces are random: by NIST SP
// 800-38D, 8.3, that is safe for 2^32 values under one key, far above the number of volume registrations.
//
// Each key is in a file that only the agent's user can read: the first key of a standalone host in a file of its own,
// those of a cluster in a directory. A file is written once and never changed: whoever loses the last copy of a key
// loses the secrets that it seals. The ledger names the key that seals (Use); as long as it names none, it is the first
// key of a standalone host.
//
// Neither a key nor a secret may be in an error, and a Sealer and a Key print as ids.
package secrets
