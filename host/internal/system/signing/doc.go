// Package signing decides whether a plugin's binary is signed with a key that this host trusts. Signatures are
// minisign's (https://jedisct1.github.io/minisign/): of the binary itself, or of a SHA256SUMS that has its checksum.
// It reads files and keys, and starts nothing.
//
// What must stay true: Check reads the binary that its caller is going to run, and a signature proves one plugin only.
// What it names, by the file's name in the trusted comment or in SHA256SUMS, is the plugin that it is used for, in that
// version.
package signing
