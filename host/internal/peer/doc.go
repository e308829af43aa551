// Package peer is how agents call one another, over the port of package rpc: nodes ask
// the leader (Servers), the leader asks nodes (Nodes), and every agent answers (Serve).
//
// What must stay true:
//
//   - A caller is whom its certificate names, and speaks for itself only; a node that is
//     no server proves with its secret that it is the node that the ledger knows. Who
//     may call what is one table (access.go), and what is not in it is refused.
//   - What the ledger is asked for another agent is agreed on at that moment: a leader
//     that does not lead any more finds out before it answers.
//   - A node does nothing for a leader of a lower term than it has seen.
//   - A call that may have had its effect is repeated only where that is safe: commands
//     have a key, and the rest may be repeated by itself.
//   - Secrets are in messages only, and never in a log or an error.
//
// It knows raft's leader and serf's members only by what it is given.
package peer
