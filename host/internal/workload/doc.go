// Package workload takes workloads through their actions, forwards and back.
//
// steps.go has the table of reversible actions. volumesteps and servicesteps say what an action of a
// volume or a service does; this package is the engine: run.go does the actions of the table and
// writes each intent and each result to the journal, restore.go continues from there after a restart
// of the host, and reconcile.go compares the journal with the ledger. table.go has the workloads, and
// repairs.go unmounts what none of them explains.
//
// What must stay true:
//
//   - An action's intent is in the journal before its Do is called. An action with an intent is
//     undone, whether it was done or not: a call that timed out may have worked.
//   - Do and Undo may be repeated at any time with the same outcome.
//   - No process is killed unless it is known to be the workload's: neither a pid nor the number of
//     a mount namespace is proof (see namespace).
//   - One goroutine owns a workload (see instance): the actions of two starts or stops of one
//     workload never interleave. It waits for the goroutines that it starts.
//   - The release of a claim never waits for Consul, and no answer of Consul ends a workload that
//     runs.
//
// It knows neither go-plugin nor raft: deps.go has what it needs of the rest of the host.
package workload
