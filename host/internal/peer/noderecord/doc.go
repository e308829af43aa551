// Package noderecord is a node's view of the ledger: the record that it keeps of itself and its drivers, and the
// ledger as its workloads see it. The leader's work for all nodes is in package watcher.
package noderecord
