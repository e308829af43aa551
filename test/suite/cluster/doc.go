// Package cluster tests clusters of real agents from end to end: servers and nodes in
// networks of their own, which are cut, killed, paused, moved and brought back. It needs root.
package cluster
