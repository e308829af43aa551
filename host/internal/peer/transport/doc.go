// Package transport is the port through which agents reach each other: one TCP port, always TLS with a certificate on
// both ends. The TLS protocol name (ALPN, RFC 7301) says what a connection is for:
//
//	pannier-raft/1   raft between servers
//	pannier-rpc/1    gRPC between agents
//	h2, http/1.1     the public API
//
// What stays true:
//
//   - A connection reaches a listener only after its certificate was verified and its role may use that protocol.
//     The listener's user can ask who it is (PeerFrom).
//   - A slow handshake holds up no other connection, and is cut off after 10 s. The number of connections is
//     bounded, per address and in total.
//   - A protocol that has no listener is not offered.
package transport
