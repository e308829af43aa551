package workload

import (
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/service"
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
	// Unknown is shown of one that was starting or running, while the host that was started
	// anew has not reached the ledger.
	Unknown State = "unknown"
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
	Waiting   string    `json:"waiting,omitempty"` // what its start or its release waits for
	BootID    string    `json:"boot_id"`
	StartedAt time.Time `json:"started_at"`
	// Run is the number of this run in the ledger (claim.Workload.CreateIndex), set by the
	// claim; 0: not known, as in a record of an older version.
	Run uint64 `json:"run,omitempty"`
	// RunID is this node's own name for the run, which the ledger knows before it has a number;
	// empty in a record of an older version.
	RunID string `json:"run_id,omitempty"`
	// WaitsSince is when it began to wait for others; zero: it did not have to.
	WaitsSince time.Time `json:"waits_since,omitzero"`

	// Owner is the process whose end releases the workload, Process the workload's
	// own, MountNS its private mount namespace.
	Owner   *process.Ref `json:"owner,omitempty"`
	Process *process.Ref `json:"process,omitempty"`
	MountNS *namespace   `json:"mount_ns,omitempty"`

	// Ports that the workload was given, by label, and UID of the user of its secrets.
	Ports map[string]int `json:"ports,omitempty"`
	UID   int            `json:"uid,omitempty"`

	// Set by reserve. Devices are noted before the plugins are asked.
	Devices     []devices.Given    `json:"devices,omitempty"`
	Reservation device.Reservation `json:"reservation,omitzero"`

	// Steps of the whole workload by name; those of volumes and services are theirs.
	Steps    map[string]progress `json:"steps"`
	Volumes  []*volumeRecord     `json:"volumes"`
	Services []*serviceRecord    `json:"services,omitempty"`
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
	Index      uint64             `json:"index,omitempty"` // the claim's fencing token; 0: not known
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

// serviceRecord is one service of a workload, with all that undoing it needs. No secret
// is in it.
type serviceRecord struct {
	Steps map[string]progress `json:"steps"`

	// Set when the workload begins.
	ID        string          `json:"id"`      // in Consul
	Service   service.Service `json:"service"` // ports are numbers, nothing is left to interpolate
	AdminPort int             `json:"admin_port,omitempty"`
	ReadyPort int             `json:"ready_port,omitempty"`
	Token     claim.Token     `json:"token,omitzero"` // without an accessor: not derived yet

	// Set by register. Registered is what Consul was told last; a spec that was changed
	// since makes Service differ from it.
	Registered *service.Service `json:"registered,omitempty"`
	ProxyID    string           `json:"proxy_id,omitempty"`

	// Set by identify. Next is to come in Token's place, Former came before it and are to
	// be revoked.
	IssuedAt time.Time     `json:"issued_at,omitzero"`
	Next     claim.Token   `json:"next,omitzero"`
	Former   []claim.Token `json:"former,omitempty"`

	// Digests of the files that were written last; empty: none.
	TokenSum     string `json:"token_sum,omitempty"`
	BootstrapSum string `json:"bootstrap_sum,omitempty"` // set by bootstrap
}

// tokens are all that Consul may have for the service.
func (s *serviceRecord) tokens() (all []claim.Token) {
	for _, t := range append([]claim.Token{s.Token, s.Next}, s.Former...) {
		if t.ID != "" {
			all = append(all, t)
		}
	}
	return all
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
