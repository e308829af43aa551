// Package peer is how agents call each other, over the port of package transport: nodes call the leader (Servers), the
// leader calls nodes (Nodes), and every agent answers (Serve).
//
// What must stay true:
//
//   - A caller is who its certificate says, and acts for itself only. A node that is no server proves with its
//     secret that it is the node in the ledger. One table (access.go) says who may make which call; anything else
//     is refused.
//   - An answer for another agent is confirmed by the cluster when it is given: a leader that does not lead any
//     more finds out before it answers.
//   - A node does nothing for a leader of a lower term than it has seen.
//   - A call that may have had its effect is repeated only if that is safe: commands have a key, and all other
//     calls may be repeated.
//   - Secrets appear in messages only, never in a log or an error.
package peer
