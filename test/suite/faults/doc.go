// Package faults tests a cluster of real agents, and the volumes of its workloads, while hosts fail: all
// servers at once, one leader after another, a server's disk, or the nodes on which the volumes are mounted.
package faults
