// Package cluster is the ledger: what all servers agree on about volumes, claims,
// workloads, nodes and drivers. Open a Node, change the ledger by its methods, read it
// through Read, wait for changes with Watch. DESIGN.md says why it is as it is.
//
// Errors that comments name without their package are those of cluster/claim (refusals) and cluster/command.
//
// It imports neither host nor sdk. Rules are in cluster/claim, what goes into
// the log in cluster/command, what is on disk in cluster/state.
package cluster
