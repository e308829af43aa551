// Package asknode has calls of the API answered by another node.
//
// Calls that speak of the agent that is called can be asked of another node, which their request names. Each agent on
// the way checks the caller by the token that came with the call, and has no rights to lend: what a caller is allowed
// by its user or its plugin ends at its own host. A server asks the node; a node that is none asks a server, which
// knows the namespaces that the first is bound to, and filters the answer by them.
package asknode
