// Package faults tries what becomes of a cluster of real agents, and of the volumes of its
// workloads, when hosts fail: all servers at once, one leader after the other, a server's
// disk, or the nodes that the volumes are mounted on.
package faults
