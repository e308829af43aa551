// Package chaos runs clusters of real agents, in networks of their own, while everything
// fails, and checks that the ledger answers as if it did one thing at a time and that no
// single-writer volume ever has two writers.
//
// A run has 3 or 5 servers and 2 nodes. With two seeds of five the volumes are not attached: then no driver refuses a
// second node. Each server has timeouts of its own, drawn anew: a lease of 1.2 to 1.8 s, and
// often the smallest margin after it that an agent admits. A seed makes the plan of faults:
//
//   - of the network: the leader, a minority or a node is partitioned, or a node from the servers only; one-way
//     silence; 30 % packet loss, or 200 ms delay.
//   - of hosts: kill -9 of the leader, any agent, or all servers; SIGSTOP of an agent for up to 12 s, or repeatedly
//     for 50 to 300 ms; a disk throttled to 10 to 40 writes a second (cgroup v1 blkio.throttle, else SIGSTOP in
//     bursts); a data disk that is frozen or full; a server that loses its copy of the ledger; transfers of
//     leadership; the fence killed; a driver that hangs.
//   - without one of the network: the fence stopped, or killed with its agent; a node that is lost, and from which an
//     operator takes the volumes by force, or which is purged; another machine with the name and certificate of a node
//     that is cut off.
//   - servers are added and removed, nodes drained, and drivers take up to 1.4 s to unpublish and to detach, and up to
//     0.7 s to delete.
//
// Meanwhile clients at all agents start and stop workloads on volumes of four access modes, read, detach, deregister
// and register. Another deletes and creates volumes. With every fourth seed one restores the ledger: it saves it
// while nobody has a volume, and claims are granted during the upload. A workload that writes has a process that
// appends lines to a file of the volume until its client or the fence ends it. A taker hammers the very volume of
// each node that has a fault, is drained, or is stopping what uses the volume, from another node, and what is being
// deleted. Afterwards:
//
//   - each volume's history is linearizable (porcupine): claims granted and refused, releases,
//     reads, register and deregister. An operation without an answer may have happened at any time or not
//     at all. A claim may vanish by itself only from when its node's log says that the lease was over.
//   - no two nodes had a single-node volume mounted at the same time, and no volume was deleted while it was mounted,
//     by the drivers' records.
//   - in no single-writer volume are lines of two workloads interleaved, and no node wrote
//     after another had published it.
//   - later claims have higher fencing tokens, every stop ended, and nothing is claimed,
//     mounted or attached.
//
// Not among the faults are clocks of different rates, since a time namespace only shifts clocks, and copies of a data
// directory, since all hosts of a test have one kernel and so one boot ID: the tests of host/internal/fencing/lease
// and cluster/state compute with them instead.
//
// Planted bugs that must be caught are in test/mutants.
//
//	go test ./test/suite/chaos       three fixed seeds of 12 s each, as in make test
//	make chaos DURATION=10m          other seeds, 40 s each
//	make chaos SEED=7                one of them again
//
// A seed decides which faults happen in which order and what the clients do; exact timing differs
// from run to run. A seed that fails keeps logs, goroutines, records and a picture of the history.
package chaos
