// Package apiserver serves the host's API (sdk/api): it turns requests into calls of the packages that do the work, and
// decides who may make them.
//
// Each service has a file, and the volume service several. server.go starts and stops the listeners, caller.go
// identifies
// the caller, permissions.go has what each call needs, errors.go the codes of errors, convert.go the API's types.
//
// What must stay true:
//
//   - The unix socket is for root, the agent's own user and one group (by peer credentials). Plain HTTP has health,
//     metrics and public keys only, since any local user can connect.
//   - A request is validated completely before anything is done or written.
//   - No answer, error, log line or metric contains a secret: secrets' values and mount flags are shown as [REDACTED].
//   - Answers are copies. What a query adds is never written back.
//   - A change that was interrupted can be repeated, and its error says so.
//   - A call for another node is passed on with its caller's own token, and nothing of the agent's rights (asknode.go).
//   - A change is logged once, with the caller; an error is returned, not logged.
//
// It keeps no state: volumes and claims are in the ledger, workloads in the workload manager, drivers in the registry.
package apiserver
