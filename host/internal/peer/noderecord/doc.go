// Package noderecord is this node's part in the ledger: what it says of itself and its
// drivers, and the ledger as its workloads see it. What the leader does for all
// nodes is in package watcher.
package noderecord
