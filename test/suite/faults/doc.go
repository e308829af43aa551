// Package faults tests what happens to a cluster of real agents, and to its workloads'
// volumes, when hosts fail: all servers at once, one leader after another, a server's disk,
// or the nodes that the volumes are mounted on.
package faults
