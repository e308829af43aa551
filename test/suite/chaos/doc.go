// Package chaos runs clusters of real agents, in networks of their own, while everything
// goes wrong that may: partitions of every shape, lost and late packets, kill -9, pauses,
// slow disks, servers that come back from a snapshot, are added and removed. Meanwhile clients
// start and stop workloads, detach, register and deregister through any agent.
//
// Afterwards it is checked that the ledger's answers are those of one ledger that does one
// thing at a time (package porcupine), that later claims have higher fencing tokens, that every
// claim was let go of in the end, and that no volume of one writer ever had two: by what the
// hosts' drivers wrote down, and by what the workloads' processes wrote into the volumes.
//
//	go test ./test/suite/chaos                                        a fixed set of seeds, as in make test
//	make chaos DURATION=10m                                     others, one after the other
//	make chaos SEED=7                                           one of them again
//
// A seed decides what goes wrong in which order and what the clients do; when exactly it
// happens differs from run to run. Clocks of different rates are not among the faults: a time
// namespace shifts clocks and does not change their rate. The tests of host/internal/fencing/lease
// compute with drifting clocks instead.
package chaos
