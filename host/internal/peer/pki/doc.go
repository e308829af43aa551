// Package pki is the identity of hosts: certificates that say who an agent is and
// what it may be, how they are made, and how they are read again while they are used.
//
// A certificate has one URI pannier://<datacenter>/<role>/<name> and the DNS name
// <role>.<datacenter>.pannier among its alternative names (RFC 5280, section 4.2.1.6).
// The URI tells who shows it; the DNS name is what a caller of a server wants to see.
//
// What stays true:
//   - A role is what the certificate says, never what the other end claims. A
//     certificate without a role, with two, or of another datacenter, opens nothing.
//   - Both ends of a connection show a certificate, in TLS 1.3, and no connection is
//     resumed: what was revoked by a new file is gone with the next connection.
//   - No private key is in an error, a log or an argument.
//   - A file is never written over.
//
// It imports nothing else of this module.
package pki
