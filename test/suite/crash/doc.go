// Package crash kills the host, its plugins, its drivers and Consul at every instant that
// matters, lets them come back, and compares the end state with a run without the kill.
//
// Compared are: volumes and claims (pannier volume status, without times, indexes and drivers' health); the
// journal's records; the kernel's mount table, with sizes; loop devices by backing file; the
// driver's own lists; directories under the data directory; processes; and for the mesh,
// Consul's services, checks and tokens after one sweep, and the owners, modes and content of
// secret files. Besides, no call for a workload is made while no claim stands, the driver sees
// no call that the CSI specification forbids, the command under way succeeds after the restart,
// and a program run by `workload run` starts at most once.
//
// The families, each with csi-local, with csi-driver-host-path and with a scripted driver that
// attaches (host-path forgets attached and staged volumes when it is killed, so a start may
// then fail, and must leave nothing and work when it is repeated):
//
//   - start, stop: the agent is killed before and after each write to the journal and the
//     ledger and each call; agent, csi-bridge and driver, each, in pairs and all, or only the
//     connection, in the middle of each call (arrived and nothing done; done and not answered).
//   - around: agent, csi-bridge or driver, before and after a start and a stop.
//   - run: agent, CLI or both at each instant of a `workload run`, and under its program.
//   - volume: as start and stop, for create, delete, snapshot, expand; the command is repeated.
//   - reboot: everything, at each instant of the agent.
//   - mesh: as start, stop, around and reboot, for register, identify and bootstrap; and the
//     agent while it replaces a token that Consul lost, and while it sweeps.
//   - chance: three workloads that share two volumes; random kills, each case with its seed.
//
// How an instant is hit: test/lib/faultydriver passes calls on to the real driver and holds the
// answer back; host/internal/system/failpoint, built with -tags failpoint, kills its own process
// at the instant that a file names; a reboot is a mount namespace in which boot_id is the
// test's file, with every process killed and every mount and loop device removed.
//
// Planted bugs that were caught, and by which family: a step's intent is not written (reboot);
// users of a staging mount are not looked up after a restart (start); workloads are not restored
// (stop); the claim is released before the mount is gone (stop); the boot id is ignored (reboot); a volume
// gets a new name on each attempt (volume); a workload's dead owner is not noticed at start
// (run); a dead plugin is restarted after an hour (around); the first user to leave a shared
// volume unstages it (chance); a starting Consul server is taken for one that refuses (mesh). Those of
// test/mutants are planted again by make mutants.
//
//	make crash                                            the whole matrix, about five minutes
//	go test ./test/suite/crash                            a sample of it, as in make test
//	go test ./test/suite/crash -full -seed=7 -run 'TestMatrix/start'   a part of it
//
// A case that differs prints the surplus (+) and the missing (-), the end of the agent's log, and the
// command that runs it again.
package crash
