package fence

import (
	"maps"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

// Mount is a place that the fence takes away when the lease is over.
type Mount struct {
	// Path is the mount point, absolute and without links, in the agent's mount
	// namespace. It may be a file that stands for a block device. Nothing need be
	// mounted there yet.
	Path string `json:"path"`
	// Staging paths are taken away after those that are published.
	Staging bool `json:"staging,omitempty"`
	// Workload whose volume is published there; nobody's for a staging path.
	Workload claim.WorkloadRef `json:"workload,omitzero"`
}

// Process is a process of a workload. The fence kills it when the lease is over, whatever
// it has open then.
type Process struct {
	PID int `json:"pid"`
	// StartTime is in clock ticks since the machine's start (proc_pid_stat(5)): another
	// process that got the same pid is left alone.
	StartTime uint64            `json:"start_time"`
	Workload  claim.WorkloadRef `json:"workload"`
}

// Times are when a lease ends.
type Times struct {
	// Stop is when the agent begins to stop its workloads by itself.
	Stop boottime.Instant `json:"stop,omitempty"`
	// Deadline is when the fence acts. Zero: there was no lease yet, and it never acts.
	Deadline boottime.Instant `json:"deadline,omitempty"`
}

// State is all that a fence knows.
type State struct {
	Times     Times     `json:"times"`
	Mounts    []Mount   `json:"mounts,omitempty"`
	Processes []Process `json:"processes,omitempty"`
}

// version of the protocol. A fence of another one is replaced.
const version = 1

// request is a line that an agent sends. Each is answered by one line.
type request struct {
	// Set replaces all that the fence knows; nil: it is only asked.
	Set *State `json:"set,omitempty"`
	// Close ends a fence that has nothing to guard.
	Close bool `json:"close,omitempty"`
}

// answer is a line that the fence sends: what it knows now.
type answer struct {
	Version int   `json:"version"`
	State   State `json:"state"`
	// Error says why State was not written down.
	Error string `json:"error,omitempty"`
}

// empty says that there is nothing to guard.
func (s State) empty() bool { return len(s.Mounts) == 0 && len(s.Processes) == 0 }

// Change is what may be done to what a fence knows (Client.Update).
type Change struct{ to *book }

// SetTimes sets when the lease ends.
func (c Change) SetTimes(t Times) { c.to.times = t }

// Protect adds mounts, by their paths.
func (c Change) Protect(mounts ...Mount) {
	for _, m := range mounts {
		c.to.mounts[m.Path] = m
	}
}

// Release takes mounts out, by their paths.
func (c Change) Release(mounts ...Mount) {
	for _, m := range mounts {
		delete(c.to.mounts, m.Path)
	}
}

// ProtectProcess adds a process.
func (c Change) ProtectProcess(p Process) { c.to.processes[p.PID] = p }

// ReleaseProcess takes a process out, unless its pid is another's.
func (c Change) ReleaseProcess(p Process) {
	if c.to.processes[p.PID].StartTime == p.StartTime {
		delete(c.to.processes, p.PID)
	}
}

// book is a State, by path and by pid.
type book struct {
	times     Times
	mounts    map[string]Mount
	processes map[int]Process
}

func newBook(s State) *book {
	b := &book{times: s.Times, mounts: map[string]Mount{}, processes: map[int]Process{}}
	Change{b}.Protect(s.Mounts...)
	for _, p := range s.Processes {
		Change{b}.ProtectProcess(p)
	}
	return b
}

// state is the book as a State of its own, sorted.
func (b *book) state() State {
	s := State{Times: b.times}
	for _, path := range slices.Sorted(maps.Keys(b.mounts)) {
		s.Mounts = append(s.Mounts, b.mounts[path])
	}
	for _, pid := range slices.Sorted(maps.Keys(b.processes)) {
		s.Processes = append(s.Processes, b.processes[pid])
	}
	return s
}

// With is the state after a change.
func (s State) With(change func(Change)) State {
	b := newBook(s)
	change(Change{b})
	return b.state()
}
