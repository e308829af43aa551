// Package cluster tests clusters of real agents from end to end. Servers and nodes have their own networks,
// and are disconnected, killed, paused, moved and restored. It needs root.
//
// TestOperations runs every shell command in docs/operations against such a cluster, in an order in which an
// operator could need them. A comment before each code block names it.
package cluster
