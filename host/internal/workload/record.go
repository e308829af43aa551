package workload

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/sdk/device"
)

// State is where a workload stands.
type State string

// The states of a workload. Failed is a start that was undone because a step failed or because it
// was stopped.
const (
	Starting State = "starting"
	Running  State = "running"
	Stopping State = "stopping"
	Stopped  State = "stopped"
	Failed   State = "failed"
	// Unknown is shown for a workload that was starting or running, until the restarted host has
	// reached the ledger.
	Unknown State = "unknown"
)

// Ended reports that nothing of the workload is left on the node.
func (s State) Ended() bool { return s == Stopped || s == Failed }

// over reports that the workload does not run, and will not: it has ended, or ends.
func (s State) over() bool { return s == Stopping || s.Ended() }

// record is what the journal keeps of a workload, from before its first step
// until after its last undo.
type record struct {
	Spec      Spec      `json:"spec"`
	State     State     `json:"state"`
	Message   string    `json:"message,omitempty"`   // why it failed or ended
	Failed    bool      `json:"failed,omitempty"`    // its start failed, or its mounts could not be brought back
	Waiting   string    `json:"waiting,omitempty"`   // what its start or its release waits for
	ForcedBy  string    `json:"forced_by,omitempty"` // see step.Workload
	Left      bool      `json:"left,omitempty"`      // its services are to be out of Consul's catalog until the next start
	BootID    string    `json:"boot_id"`
	StartedAt time.Time `json:"started_at"`
	// StartedOn is StartedAt on the clock of leases, which is never set.
	StartedOn boottime.Instant `json:"started_on"`
	// Run is the number of this run in the ledger (claim.Workload.CreateIndex), set by the claim.
	Run uint64 `json:"run,omitempty"`
	// RunID is this node's own name for the run, which the ledger knows before the run has a number.
	RunID string `json:"run_id"`
	// WaitsSince is when it began to wait for other workloads; zero: it did not.
	WaitsSince time.Time `json:"waits_since,omitzero"`
	// Grant is the leader's statement that the workload may start when the wait is over; empty: it needs none, or its
	// caller's token.
	Grant []byte `json:"grant,omitempty"`

	// Owner is the process whose end releases the workload, Process the workload's
	// own, MountNS its private mount namespace.
	Owner   *process.Ref `json:"owner,omitempty"`
	Process *process.Ref `json:"process,omitempty"`
	MountNS *namespace   `json:"mount_ns,omitempty"`
	// MountedAt is where a volume has to be mounted after the owner's end; see Options.
	MountedAt string `json:"mounted_at,omitempty"`

	// Ports of the workload by label, and UID of the user that owns its secrets.
	Ports map[string]int `json:"ports,omitempty"`
	UID   int            `json:"uid,omitempty"`

	// Set by reserve. Devices are recorded before the plugins are asked.
	Devices     []devices.Given    `json:"devices,omitempty"`
	Reservation device.Reservation `json:"reservation,omitzero"`

	// Steps of the whole workload by name; volumes and services have their own.
	Steps    map[string]step.Progress `json:"steps"`
	Volumes  []*volumesteps.Record    `json:"volumes"`
	Services []*servicesteps.Record   `json:"services,omitempty"`
}

const (
	records journal.Bucket[record] = "workload"
	boots   journal.Bucket[string] = "boot"
)

func key(ref claim.WorkloadRef) string { return ref.Namespace + "/" + ref.ID }
