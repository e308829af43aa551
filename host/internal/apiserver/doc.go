// Package apiserver serves the host's API (sdk/api): it turns requests into calls of the packages that do the work, and
// decides who may make them.
//
// This package has what is the same for every call: server.go starts and stops the listeners, gate.go and caller.go
// identify the caller, permissions.go has what each call needs, filter.go what its answer may contain, forward.go
// passes calls on to the leader, record.go counts and audits them. The calls are answered by handlers in folders of
// their own, by what they are about: volumes, workloads, drivers, plugins, nodes, operator, acls and agentapi. What
// handlers share is in call, and asknode asks other nodes.
//
// What must stay true:
//
//   - The unix socket is for root, the agent's own user and one group (by peer credentials). Plain HTTP has health,
//     metrics and public keys only, since any local user can connect.
//   - A request is validated completely before anything is done or written.
//   - No answer, error, log line or metric contains a secret: values of secrets, in mount flags too, are [REDACTED].
//   - Answers are copies. What a query adds is never written back.
//   - A change that was interrupted can be repeated, and its error says so.
//   - A call for another node is passed on with its caller's own token, and nothing of the agent's rights (asknode).
//   - A change is logged once, with the caller; an error is returned, not logged.
//
// It keeps no state: volumes and claims are in the ledger, workloads in the workload manager, drivers in the registry.
package apiserver
