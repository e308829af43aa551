// Package launch runs a workload's program in a mount namespace of its own, with
// each volume bound at its destination.
//
// The parent starts its own binary again as the child. The child is born in the
// new namespace, makes it a slave of the host's (so that what the host unmounts
// later is not held here), binds the volumes and reports. It waits until the
// parent says go, drops to the program's user and executes the program: the
// process id that was reported to the agent is the program's.
//
// Sidecars are started in the same way, but join that namespace, before the program
// is told to go. They end last.
//
// What stays true:
//   - The program does nothing before Go was called.
//   - When the parent dies, by SIGKILL too, the program dies with it.
//   - After EndLeftovers no process that the program started is left.
//   - A sidecar that was started runs, or is about to be restarted, until StopRestarts.
package launch
