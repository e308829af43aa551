// Package noderecord keeps a node's record in the ledger: itself, its drivers and its drain. The leader's work for all
// nodes is in package watcher.
package noderecord
