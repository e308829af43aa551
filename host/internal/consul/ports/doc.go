// Package ports gives the node's ports to workloads, each to one at a time.
//
// A port is given when no other workload has it and nothing listens on it at that
// moment, whoever it is: who asks is told at once what is in the way. It keeps
// nothing on disk: what was given before a restart of the host is in the workloads'
// records, and is put back by Restore before anything else is given.
//
// It imports the standard library only.
package ports
