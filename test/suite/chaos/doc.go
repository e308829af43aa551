// Package chaos runs clusters of real agents, in networks of their own, while everything
// fails, and checks that the ledger answers as if it did one thing at a time and that no
// single-writer volume ever has two writers.
//
// A run has 3 or 5 servers and 2 nodes, with a lease of 2 s and claims released after 5 s. A seed makes
// the plan of faults: partitions of the leader, a minority or a node; a node cut off from the servers only;
// one-way silence; 30 % packet loss, or 200 ms delay; kill -9 of the leader, any agent, or all servers;
// SIGSTOP of an agent for up to 12 s, or repeatedly for 50 to 300 ms, while its workloads and
// fence run on; a disk throttled to 10 to 40 writes a second (cgroup v1 blkio.throttle, else SIGSTOP in
// bursts); a server that loses its copy of the ledger and returns from snapshot and log; transfers of
// leadership, added and removed servers.
//
// Meanwhile clients at all agents start and stop workloads on volumes of four access modes, read,
// detach, deregister and register. A workload that writes has a process that appends lines to a
// file of the volume until its client or the fence ends it. Afterwards:
//
//   - each volume's history is linearizable (porcupine): claims granted and refused, releases,
//     reads, register and deregister. An operation without an answer may have happened at any time or not
//     at all. A claim may vanish by itself only where its node's log says that its lease was over.
//   - no two nodes had a single-node volume mounted at the same time, by the drivers' records.
//   - in no single-writer volume are lines of two workloads interleaved, and no node wrote
//     after another had published it.
//   - later claims have higher fencing tokens, every stop ended, and nothing is claimed,
//     mounted or attached.
//
// Clocks of different rates are not among the faults, since a time namespace only shifts
// clocks; the tests of host/internal/fencing/lease compute with drifting ones instead.
//
// Planted bugs that were caught: the leader releases a node's claims after 1 s (volumes published
// twice, lines interleaved); the fence never acts (volumes published twice); servers answer queries without
// confirming that they lead (histories that are not linearizable).
//
//	go test ./test/suite/chaos       three fixed seeds of 15 s each, as in make test
//	make chaos DURATION=10m          other seeds, 40 s each
//	make chaos SEED=7                one of them again
//
// A seed decides which faults happen in which order and what the clients do; exact timing differs
// from run to run. A seed that fails keeps logs, goroutines, records and a picture of the history.
package chaos
