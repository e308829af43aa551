// Package apiserver serves the host's API (sdk/api): it turns requests into calls
// of the packages that do the work, and decides who may make them.
//
// One file a service, volumes_*.go the volume service's. server.go has what is served
// where, caller.go who calls, permissions.go what each call needs, errors.go which code an
// error has, convert.go how things look outside.
//
// What must stay true:
//
//   - The API is on the unix socket only, for root, the agent's own user and one
//     group (by peer credentials). TCP has health, metrics and public keys, since any
//     local user can reach it.
//   - A request is checked whole before anything is done or written.
//   - No answer, error, log line or metric carries a secret: secrets' values and
//     mount flags read back as [REDACTED].
//   - Answers are made of copies. Nothing that a query adds is ever written back.
//   - A change that is cut off can be repeated, and says so.
//   - A change is logged once, with who asked for it; an error is returned, not logged.
//
// It keeps no state: volumes and claims are the ledger's, workloads the workload
// manager's, drivers the registry's.
package apiserver
