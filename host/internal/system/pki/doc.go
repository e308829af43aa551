// Package pki is the identity of hosts: certificates with an agent's name and role, how they are created, and how they
// are reloaded while in use.
//
// A certificate has one URI pannier://<datacenter>/<role>/<name> and the DNS name <role>.<datacenter>.pannier among its
// alternative names (RFC 5280, section 4.2.1.6). The URI is the holder; the caller of a server checks the DNS name.
//
// What stays true:
//
//   - A role is what the certificate says, never what the other end claims. A certificate without a role, with two,
//     or of another datacenter, is refused.
//   - Both ends of a connection show a certificate, in TLS 1.3, and no connection is resumed: a change of the files
//     counts from the next connection on.
//   - No private key is in an error, a log or an argument.
//   - A file is never overwritten.
package pki
