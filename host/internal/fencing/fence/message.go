package fence

import (
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
