// Package transport is the port through which agents reach each other: one TCP port, always
// TLS with a certificate on both ends, on which the protocol of TLS (ALPN, RFC 7301)
// tells what a connection is for.
//
//	pannier-raft/1   raft between servers
//	pannier-rpc/1    gRPC between agents
//	h2, http/1.1     the public API
//
// What stays true:
//   - A connection reaches a listener only after its certificate was verified and its
//     role may speak that protocol; what it is then given knows who it is (PeerFrom).
//   - A connection that is slow to say who it is holds up no other, and is cut off
//     after 10 s. How many there are, of one address and of all, is bounded.
//   - A protocol that nobody listens for is not spoken.
//
// It imports host/internal/peer/pki and raft's types, and nothing else of this module.
package transport
