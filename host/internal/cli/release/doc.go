// Package release compares the programs and plugins that are installed on this host with the signed checksums of their
// release. It reads files, and needs neither a network nor an agent.
//
// What must stay true: All is well only if a key that the caller trusts has signed the checksums, and what lies where
// programs and plugins are installed is, byte for byte, what was signed. Checksums whose signature is wrong are not
// used.
package release
