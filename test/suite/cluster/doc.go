// Package cluster tests clusters of real agents from end to end: servers and nodes in
// networks of their own, which are cut, killed, paused, moved and restored. It needs root.
//
// TestOperations runs every line of shell in docs/operations, named by the comment before its
// block, against such a cluster, in an order in which an operator could need them.
package cluster
