// Package workload takes workloads through their steps, forwards and back.
//
// steps.go is the whole story: a table of reversible steps. run.go carries it
// out and writes each intent and each result to the journal; restore.go goes on
// from there after the host was away; upkeep.go looks after the services of what runs.
// What must stay true:
//
//   - A step's intent is in the journal before its Do is called. Whatever has an
//     intent is undone, done or not: a call that timed out may have worked.
//   - Do and Undo may be called again at any time with the same outcome.
//   - A claim is let go of only when nothing of its volume is mounted for the
//     workload on this node any more.
//   - No process is killed that is not known to be the workload's: neither a pid
//     nor the number of a mount namespace is proof (see namespace).
//   - One goroutine owns a workload (see instance): steps of two starts or stops
//     of one workload never interleave. It waits for those that it lets do a part.
//   - Of every token that Consul may have, the journal and the ledger know before Consul
//     is asked. No secret is in the journal.
//   - No claim waits for Consul, and nothing that Consul says ends a workload that runs.
//
// It knows neither go-plugin nor raft: what it needs of the rest of the host is
// in deps.go.
package workload
