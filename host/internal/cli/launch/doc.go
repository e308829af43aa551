// Package launch runs a workload's program in a mount namespace of its own, with each volume bound at its destination.
//
// The parent starts its own binary again as the child (package child), in a new namespace. The child makes the
// namespace a slave of the host's, so that it does not hold what the host unmounts later, binds the volumes and
// reports. When the parent says go it drops to the program's user and executes the program: the process id that was
// reported to the agent is the program's.
//
// Sidecars are started in the same way before the program, but join its namespace. They end last. One that has to read
// a new file is restarted, or is started once more beside the first, if it takes over from itself as Envoy does.
//
// What must stay true:
//   - The program does nothing before Go is called.
//   - When the parent dies, even by SIGKILL, the program dies with it.
//   - After EndLeftovers no process that the program started is left.
//   - An Envoy that another one has taken over from is ended by that one, and never from here while that one serves.
//   - A sidecar that was started runs, or is about to be restarted, until StopRestarts.
package launch
