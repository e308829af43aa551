// Package process runs a program so that it outlives the host that started it,
// and finds it again. The supervisor runs plugins with it, and drivers CSI drivers.
//
// A caller persists a Ref twice: Spec.Intent before Start and Process.Ref after
// it. Whatever the instant at which the host is killed, the next host gives the
// last Ref it has to Find, and gets the process, or the certainty that there is
// none.
//
// What must stay true: a process is known by its pid, its start time and the boot
// together, so a stranger that got the same pid is never signalled; its output
// goes to a file and never to a pipe of ours, since a write to a pipe whose
// reader died kills a Go program; and it leads a process group of its own, which
// ends as a whole, with what left it.
//
// A process gets nothing of the host but its user, its standard output and the
// environment of its Spec. Limits hold it where the kernel can, by control groups
// below the host's own; Usage tells what it takes in any case.
//
// It imports the standard library, golang.org/x/sys and hclog, and knows neither
// plugins nor drivers. It is for Linux 5.4 and later (pidfd).
package process
