package volumesteps

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// Record is what the journal keeps of one volume request, with all that undoing it needs: an
// undo reads neither the ledger nor the driver's fingerprint.
type Record struct {
	Request specs.VolumeRequest      `json:"request"`
	Steps   map[string]step.Progress `json:"steps"`

	// The volume as it was claimed, with the mount options of the request. Set by the claim, but for its VolumeRef.
	claim.Definition
	Index uint64       `json:"index,omitempty"` // the claim's fencing token; 0: not known; see limits.check
	Usage mounts.Usage `json:"usage"`

	// Set by attach, stage and publish; Staging by the claim too, as it is where v is the first user.
	PublishContext map[string]string `json:"publish_context,omitempty"`
	Staging        string            `json:"staging,omitempty"`
	Target         string            `json:"target,omitempty"`
	Mounted        *mounts.Mount     `json:"mounted,omitempty"`
	Unanswered     *unanswered       `json:"unanswered,omitempty"` // a call to publish
	Unexpanded     string            `json:"unexpanded,omitempty"` // see mounts.Place

	// ForcedBy is the operator for whom the host has unmounted the volume without its driver; empty: it has not.
	ForcedBy string `json:"forced_by,omitempty"`
}

// NewRecord is the record of a request of one run of a workload that no step was taken for yet.
func NewRecord(w claim.WorkloadRef, run string, req specs.VolumeRequest) *Record {
	v := &Record{
		Request: req, Steps: map[string]step.Progress{},
		Definition: claim.Definition{VolumeRef: claim.VolumeRef{Namespace: w.Namespace, ID: req.Source}},
	}
	if req.Ephemeral() {
		v.makeEphemeral(w, run)
	}
	return v
}

// The names of the steps that attach and mount, in Record.Steps.
const (
	AttachStep  = "attach"
	StageStep   = "stage"
	PublishStep = "publish"
)

// Staged reports that the step has succeeded.
func (v *Record) Staged() bool { return v.Steps[StageStep] == step.Done }

// Published reports that the step has succeeded.
func (v *Record) Published() bool { return v.Steps[PublishStep] == step.Done }

// Place is where the volume is published.
func (v *Record) Place() mounts.Place {
	p := mounts.Place{Target: v.Target, Unexpanded: v.Unexpanded}
	if v.Staged() {
		p.Staging = v.Staging
	}
	return p
}

// MayBeMounted reports that the volume is mounted for the workload, or may be.
func (v *Record) MayBeMounted() bool { return v.Steps[StageStep] != "" || v.Steps[PublishStep] != "" }

// users is what this node keeps of one volume for all its workloads: which requests need the
// attachment, or one staging mount. It outlives a restart of the host.
type users struct {
	Driver string   `json:"driver"`
	Users  []string `json:"users"`
	// Done is true if the driver has answered with success; until then the call may or may not have worked.
	Done           bool               `json:"done,omitempty"`
	PublishContext map[string]string  `json:"publish_context,omitempty"` // of an attachment
	Mounted        *mounts.Mount      `json:"mounted,omitempty"`         // of a staging mount
	Unanswered     *unanswered        `json:"unanswered,omitempty"`      // a call to stage
	Options        claim.MountOptions `json:"options,omitzero"`          // of a staging mount
}

const (
	attachments journal.Bucket[users] = "attachment"
	stagings    journal.Bucket[users] = "staging"
)

// userTable is the users of all attachments, or of all staging mounts, in the journal.
type userTable struct {
	journal *journal.Journal
	bucket  journal.Bucket[users]
}

func attachmentKey(ref claim.VolumeRef) string { return ref.Namespace + "/" + ref.ID }

// stagingKey is of the staging mount at v.Staging.
func (v *Record) stagingKey() string {
	return attachmentKey(v.VolumeRef) + "/" + filepath.Base(v.Staging)
}

// join adds the volume request to the users of a mount or an attachment, before the driver is called for it.
func (t userTable) join(key string, v *Volume) (*users, error) {
	u, err := t.load(key)
	if err != nil {
		return nil, err
	}
	if u == nil {
		u = &users{Driver: v.PluginID}
		if t.bucket == stagings {
			u.Options = v.MountOptions
		}
	}
	if u.Driver != v.PluginID {
		return nil, fmt.Errorf("volume %q is still in use here through driver %q, not %q", v.VolumeRef, u.Driver, v.PluginID)
	}
	if me := v.user(); !slices.Contains(u.Users, me) {
		u.Users = append(u.Users, me)
	}
	return u, t.save(key, u)
}

// leave removes the request from the users; the last one removes the record.
func (t userTable) leave(key string, v *Volume) error {
	u, err := t.load(key)
	if err != nil || u == nil {
		return err
	}
	u.Users = slices.DeleteFunc(u.Users, func(u string) bool { return u == v.user() })
	return t.save(key, u)
}

// user names one volume request of one workload on this node.
func (v *Volume) user() string {
	return v.workload.Namespace + "/" + v.workload.ID + "/" + v.Request.Name
}

func (t userTable) load(key string) (u *users, err error) {
	err = t.journal.View(func(tx *journal.Tx) error {
		u, err = t.bucket.Get(tx, key)
		return err
	})
	return u, err
}

// save writes the record, or deletes it when there are no users any more.
func (t userTable) save(key string, u *users) error {
	defer failpoint.Here(string(t.bucket), "saved")
	return t.journal.Update(func(tx *journal.Tx) error {
		if len(u.Users) == 0 {
			return t.bucket.Delete(tx, key)
		}
		return t.bucket.Put(tx, key, u)
	})
}

// ForgetMounts records that nothing is attached or mounted any more, as after a reboot. The
// users stay until their workloads are undone.
func ForgetMounts(tx *journal.Tx) error {
	for _, b := range []journal.Bucket[users]{attachments, stagings} {
		all := map[string]*users{}
		if err := b.Each(tx, func(key string, u *users) error { all[key] = u; return nil }); err != nil {
			return err
		}
		for key, u := range all {
			u.Done, u.Mounted, u.Unanswered = false, nil, nil
			if err := b.Put(tx, key, u); err != nil {
				return err
			}
		}
	}
	return nil
}
