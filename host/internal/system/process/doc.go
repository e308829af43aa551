// Package process runs a program so that it outlives the host that started it, and finds it again. The supervisor runs
// plugins with it, and package drivers CSI drivers.
//
// A caller persists a Ref twice: Spec.Intent before Start and Process.Ref after it. Whenever the host is killed, the
// next host passes the last Ref to Find, which returns the process or says that there is none.
//
// What must stay true: a process is identified by its PID, its start time and the boot together, so another process
// with the same PID is never signalled. Its output goes to a file and never to a pipe of the host's, since a write to
// a pipe without a reader kills a Go program. It leads a process group of its own, which is stopped as a whole,
// together with descendants that have left it.
//
// A process inherits nothing from the host but its user; its standard output and environment are those of its Spec.
// Limits are enforced by control groups below the host's own if the kernel permits it; Usage says in any case what the
// process uses.
//
// It is for Linux 5.4 and later (pidfd).
package process
