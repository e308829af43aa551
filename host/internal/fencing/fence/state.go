package fence

import (
	"maps"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/mountuse"
)

// Mount is a path that the fence unmounts when the lease is over.
type Mount struct {
	// Path is the mount point in the agent's mount namespace, absolute and without links. It may be a file that stands
	// for a block device. Nothing needs to be mounted there yet.
	Path string `json:"path"`
	// Staging paths are unmounted after published ones.
	Staging bool `json:"staging,omitempty"`
	// Was is what is mounted there, as soon as it is; nil: it is not known. If somebody unmounts it, its copies and its
	// users are known by it.
	Was *mountuse.Identity `json:"was,omitempty"`
	// Workload is the one that the volume is published for; empty for a staging path.
	Workload claim.WorkloadRef `json:"workload,omitzero"`
}

// Process is a process of a workload. The fence kills it when the lease is over, whether or not it has a file of a
// volume open.
type Process struct {
	PID int `json:"pid"`
	// StartTime is in clock ticks since boot (proc_pid_stat(5)). A later process with the same PID is left alone.
	StartTime uint64            `json:"start_time"`
	Workload  claim.WorkloadRef `json:"workload"`
}

// Times are when a lease ends.
type Times struct {
	// Stop is when the agent begins to stop its workloads.
	Stop boottime.Instant `json:"stop,omitempty"`
	// Deadline is when the fence acts. Zero: there was no lease yet, and the fence never acts.
	Deadline boottime.Instant `json:"deadline,omitempty"`
}

// State is everything that a fence knows.
type State struct {
	Times     Times     `json:"times"`
	Mounts    []Mount   `json:"mounts,omitempty"`
	Processes []Process `json:"processes,omitempty"`
}

// version is the protocol's version. A fence with another version is replaced.
const version = 1

// request is one line from the agent. The fence answers each with one line.
type request struct {
	// Set replaces the fence's state; nil only reads it.
	Set *State `json:"set,omitempty"`
	// Close ends the fence if it has nothing to guard.
	Close bool `json:"close,omitempty"`
}

// answer is one line from the fence.
type answer struct {
	Version int   `json:"version"`
	State   State `json:"state"`
	// Error explains why State could not be saved; empty: it was.
	Error string `json:"error,omitempty"`
}

// empty reports whether there is nothing to guard.
func (s State) empty() bool { return len(s.Mounts) == 0 && len(s.Processes) == 0 }

// Change is the changes that Client.Update can make to the fence's state.
type Change struct{ to *book }

// SetTimes sets when the lease ends.
func (c Change) SetTimes(t Times) { c.to.times = t }

// Protect adds mounts, or replaces mounts with the same path. A mount that is known there stays known.
func (c Change) Protect(mounts ...Mount) {
	for _, m := range mounts {
		if m.Was == nil {
			m.Was = c.to.mounts[m.Path].Was
		}
		c.to.mounts[m.Path] = m
	}
}

// Release removes the mounts with these paths.
func (c Change) Release(mounts ...Mount) {
	for _, m := range mounts {
		delete(c.to.mounts, m.Path)
	}
}

// ProtectProcess adds a process.
func (c Change) ProtectProcess(p Process) { c.to.processes[p.PID] = p }

// ReleaseProcess removes a process, unless its PID now belongs to another one.
func (c Change) ReleaseProcess(p Process) {
	if c.to.processes[p.PID].StartTime == p.StartTime {
		delete(c.to.processes, p.PID)
	}
}

// book is a State indexed by path and by PID.
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

// state converts the book to a sorted State.
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

// With returns the state after a change.
func (s State) With(change func(Change)) State {
	b := newBook(s)
	change(Change{b})
	return b.state()
}
