package workload

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/journal"
	"github.com/pannier/pannier/host/internal/mounts"
	"github.com/pannier/pannier/host/internal/process"
)

// State is where a workload stands.
type State string

// The states of a workload. Failed is a start that was not brought to its end,
// because a step failed or because it was given up, and has been undone.
const (
	Starting State = "starting"
	Running  State = "running"
	Stopping State = "stopping"
	Stopped  State = "stopped"
	Failed   State = "failed"
)

// Ended says that nothing of the workload is left on the node.
func (s State) Ended() bool { return s == Stopped || s == Failed }

// record is what the journal keeps of a workload, from before its first step
// until after its last undo.
type record struct {
	Spec      Spec      `json:"spec"`
	State     State     `json:"state"`
	Message   string    `json:"message,omitempty"` // why it failed or ended
	Failed    bool      `json:"failed,omitempty"`  // its start failed, or its mounts could not be brought back
	Waiting   string    `json:"waiting,omitempty"` // what its release waits for
	BootID    string    `json:"boot_id"`
	StartedAt time.Time `json:"started_at"`

	// Owner is the process whose end releases the workload, Process the workload's
	// own, MountNS its private mount namespace.
	Owner   *process.Ref `json:"owner,omitempty"`
	Process *process.Ref `json:"process,omitempty"`
	MountNS *namespace   `json:"mount_ns,omitempty"`

	// Steps of the whole workload by name; those of volumes are theirs.
	Steps   map[string]progress `json:"steps"`
	Volumes []*volumeRecord     `json:"volumes"`
}

// progress is how far a step has come. A step that has none is not undone.
type progress string

const (
	intended progress = "intended" // Do may have been called
	done     progress = "done"
)

// volumeRecord is one volume request of a workload, with all that undoing it
// needs: neither the ledger nor the driver's fingerprint is asked then.
type volumeRecord struct {
	Request VolumeRequest       `json:"request"`
	Steps   map[string]progress `json:"steps"`

	// Set by the claim.
	Ref        claim.VolumeRef    `json:"ref"`
	Driver     string             `json:"driver,omitempty"`
	ExternalID string             `json:"external_id,omitempty"`
	Context    map[string]string  `json:"context,omitempty"`
	Usage      mounts.Usage       `json:"usage"`
	Options    claim.MountOptions `json:"options"`

	// Set by attach, stage and publish.
	PublishContext map[string]string `json:"publish_context,omitempty"`
	Staging        string            `json:"staging,omitempty"`
	Target         string            `json:"target,omitempty"`
	Mounted        *mounts.Mount     `json:"mounted,omitempty"`
}

// users is what this node keeps of one volume for all its workloads: who needs
// the attachment, or one staging mount. It outlives a restart of the host.
type users struct {
	Driver string   `json:"driver"`
	Users  []string `json:"users"`
	// Done says that the driver has answered with success; until then the call may
	// or may not have worked.
	Done           bool              `json:"done,omitempty"`
	PublishContext map[string]string `json:"publish_context,omitempty"` // of an attachment
	Mounted        *mounts.Mount     `json:"mounted,omitempty"`         // of a staging mount
}

const (
	records     journal.Bucket[record] = "workload"
	attachments journal.Bucket[users]  = "attachment"
	stagings    journal.Bucket[users]  = "staging"
	boots       journal.Bucket[string] = "boot"
)

func key(ref claim.WorkloadRef) string { return ref.Namespace + "/" + ref.ID }

func attachmentKey(ref claim.VolumeRef) string { return ref.Namespace + "/" + ref.ID }

func stagingKey(ref claim.VolumeRef, u mounts.Usage) string {
	return ref.Namespace + "/" + ref.ID + "/" + u.String()
}
