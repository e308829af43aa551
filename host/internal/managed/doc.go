// Package managed runs programs that outlive their host, and whose programs can be replaced while callers use them. It
// knows nothing of what the programs do: plugins and CSI drivers run with it.
//
// A Set has the processes of one program. Run is its one goroutine:
//
//	choose → copy → record the intent → fork → record the process → up → record that it serves → serve
//	             └──────── any failure: end this process, back off, begin again ────────┘
//
// When something else should run, such as a new file:
//
//	choose → copy → start beside the old one ... up → examine → record: serves → move callers → drain and end the old one
//	                     └───── any failure: end the new process, refuse its copy; callers notice nothing ─────┘
//
// If a process fails soon after it has taken over (Hooks.OnProbation), its copy is refused and the one before it
// takes over.
//
// # How to use it
//
// A Transport starts a process (it calls fork once), finds the way to one of an earlier host, and lets callers use
// another one; a Conn is the way to one process. Hooks decide the rest, and all have defaults. Package goplugin has
// a Transport for HashiCorp's go-plugin. examples/hotswap is a whole host.
//
//   - New and Run start what should run, or find what an earlier host has left (Transport.Reattach).
//   - Recheck looks again at what should run; WatchFiles calls it when files change.
//   - Do runs a function in the set's goroutine. In it Replace, SwapTo, Try, Promote, Retire and End may be called: Try
//     brings a process up beside the one that serves, Promote lets it serve, Retire and End end one.
//
// # What must stay true
//
//   - No process is started twice and none is lost, whenever the host is killed: the record is on the disk before
//     anything depends on it. If it cannot be read, nothing is started.
//   - What was hashed is what runs: a process runs from a copy, and the copy is hashed again at each start.
//   - Callers move only to a process that has been examined, and the record names it before they do.
//   - What an earlier host has left is neither ended nor replaced before the start of this one has succeeded
//     (Hooks.Confirmed).
//   - A recycled PID is never signalled (package process).
//
// It may import system/process, system/program and what these need, and internal.
package managed
