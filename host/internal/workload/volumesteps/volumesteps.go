// Package volumesteps has the steps that give a workload its volumes: claim, attach, stage and
// publish, each with its undo. An ephemeral volume is published only (see specs.VolumeRequest).
//
// What must stay true:
//
//   - A claim is released only when nothing of its volume is mounted for the workload on this
//     node any more.
//   - A driver is asked to mount only while the node's lease is valid, the claims are those that
//     the ledger has, and the fence knows the mount.
//   - A call that mounts and that a driver never answered keeps the volume's claim until the driver cannot be at it any
//     more (see unanswered).
//   - An attachment and a staging mount are shared by all of this node's users of a volume; who
//     uses them is in the journal before the driver is called.
package volumesteps

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/internal/kmutex"
	"github.com/pannier/pannier/sdk/storage"
)

// driverWait is how long a call waits for a driver that is not healthy yet, as after the start of
// the host.
const driverWait = 30 * time.Second

// Lease is this node's right to use volumes (lease.Lease). Nothing is mounted without one; when
// it ends, the fence unmounts what is mounted.
type Lease interface {
	// Valid reports whether volumes may be used now (lease.ErrNoLease).
	Valid() error
	// Epoch counts the leases: while it stays the same, the servers have released no claim.
	Epoch() uint64
	// Protect tells the fence of mounts that are about to be made, Release of mounts that are gone.
	Protect(ctx context.Context, mounts ...fence.Mount) error
	Release(ctx context.Context, mounts ...fence.Mount) error
}

// Controller makes the controller calls of a driver, on whichever node the controller runs.
type Controller interface {
	// Attach makes a volume available on a node and returns the driver's publish context (CSI
	// spec, ControllerPublishVolume).
	Attach(ctx context.Context, v claim.Volume, modes claim.Capability, node string) (map[string]string, error)
}

// Config is what the volume steps of a node work with.
type Config struct {
	Node       string
	Layout     mounts.Layout
	Journal    *journal.Journal
	Ledger     cluster.Ledger
	Lease      Lease
	Controller Controller
	Drivers    drivers.Caller
	// Secrets decrypts a volume's secrets.
	Secrets func(ctx context.Context, v claim.Volume) (map[string]string, error)
	// ReadSecret reads the file of a file:// reference of a driver's block.
	ReadSecret func(ref string) (string, error)
	Events     *events.Bus
	Log        hclog.Logger
	// Closing ends when the host stops: then calls to drivers are cancelled.
	Closing context.Context
	// Explained reports whether a record of this node's workloads explains a mount at a path.
	Explained func(path string) bool
	// Expanded sets Record.Unexpanded of a volume for all workloads of this node.
	Expanded func(ref claim.VolumeRef, why string)
	// Records calls read for the volumes of each workload of this node that has not ended, under the workload's lock.
	Records func(read func(w claim.WorkloadRef, all []*Record))
}

// Steps takes the volume steps of all workloads of a node.
type Steps struct {
	Config
	Claims      *Claims
	Calls       *driverCalls
	paths       paths
	attachments userTable
	stagings    userTable

	Locks   locks // of the volumes that are being changed
	leaving locks // see Unpublish; taken after Locks
}

// New makes Steps.
func New(c Config) *Steps {
	calls := &driverCalls{caller: c.Drivers, log: c.Log, closing: c.Closing, DriverWait: driverWait}
	return &Steps{
		Config: c,
		Claims: &Claims{
			node: c.Node, layout: c.Layout, ledger: c.Ledger, lease: c.Lease, drivers: calls,
			limits: limits{node: c.Node, ledger: c.Ledger, records: c.Records},
		},
		Calls:       calls,
		paths:       paths{layout: c.Layout, log: c.Log, events: c.Events},
		attachments: userTable{c.Journal, attachments},
		stagings:    userTable{c.Journal, stagings},
	}
}

// locks let one workload at a time change what this node does with a volume.
type locks struct{ kmutex.Locks[claim.VolumeRef] }

func (l *locks) lock(ctx context.Context, ref claim.VolumeRef) (unlock func(), err error) {
	if unlock, err = l.Lock(ctx, ref); err != nil {
		return nil, fmt.Errorf("wait for another use of volume %q: %w", ref, err)
	}
	return unlock, nil
}

// Set is the volumes of one workload.
type Set struct {
	step.Workload
	Volumes []*Volume

	epoch uint64 // of the lease under which the claims were last seen in the ledger
	check bool   // nothing is started: drivers are not waited for
}

// NewSet makes the volumes of a workload from their records.
func NewSet(w step.Workload, records []*Record) *Set {
	s := &Set{Workload: w}
	for _, rec := range records {
		s.Volumes = append(s.Volumes, &Volume{Record: rec, set: s, workload: w.Ref()})
	}
	return s
}

// Volume is one volume request while the host works on it.
type Volume struct {
	*Record
	set      *Set // nil for a volume of a workload that this node does not know
	workload claim.WorkloadRef

	info   claim.Volume   // as the ledger has it; set by the claim
	driver drivers.Driver // set by the claim
	flight *flight        // the last step that makes a call that mounts
}

// Attaches reports that the driver has a controller service with PUBLISH_UNPUBLISH_VOLUME (CSI
// spec, ControllerPublishVolume). A driver without a controller service on this node may have
// one on another node: then it is asked there.
func (v *Volume) Attaches() bool {
	c := v.driver.Fingerprint.Controller
	return !v.Request.Ephemeral() && (c == nil || c.AttachDetach)
}

// Stages reports that the driver has STAGE_UNSTAGE_VOLUME (CSI spec, NodeStageVolume).
func (v *Volume) Stages() bool {
	n := v.driver.Fingerprint.Node
	return !v.Request.Ephemeral() && n != nil && n.StageUnstage
}

// driverCalls makes the calls to this node's drivers, and knows which of them are not answered.
type driverCalls struct {
	caller  drivers.Caller
	log     hclog.Logger
	closing context.Context // ends when the host stops
	// DriverWait is how long a call waits for a driver that is not healthy yet.
	DriverWait time.Duration

	flights sync.WaitGroup
}

// withWay is a driver's timeout with some time for the way there and back.
func withWay(timeout time.Duration) time.Duration { return timeout + timeout/20 }

// call makes one call to the driver of v; wait is how long the driver may take to become healthy. The error names the
// volume and what was tried.
func (c *driverCalls) call(ctx context.Context, verb string, v *Volume, wait time.Duration,
	fn func(ctx context.Context, client storage.Client, d drivers.Driver) error,
) error {
	// Room for a second call, if the plugin ends during the first.
	ctx, cancel := context.WithTimeout(ctx, wait+2*withWay(c.spec(v).Timeout(verb)))
	defer cancel()
	err := c.caller.Call(ctx, v.PluginID, wait, func(ctx context.Context, client storage.Client, d drivers.Driver) error {
		ctx, cancel := context.WithTimeout(ctx, withWay(d.Timeout(verb)))
		defer cancel()
		return fn(ctx, client, d)
	})
	if err != nil {
		return fmt.Errorf("%s volume %q (external id %q) for workload %q on driver %q: %w", verb, v.Name(), v.ExternalID,
			v.workload, v.PluginID, err)
	}
	return nil
}

// withSecrets is the volume as a driver's call needs it. Secrets are decrypted for the call and
// kept nowhere.
func (s *Steps) withSecrets(ctx context.Context, v *Volume) (storage.Volume, error) {
	read := func() (map[string]string, error) { return s.Secrets(ctx, v.info) }
	if v.Request.Ephemeral() {
		read = func() (map[string]string, error) { return v.driver.EphemeralSecrets(s.ReadSecret) }
	}
	secrets, err := read()
	if err != nil {
		return storage.Volume{}, fmt.Errorf("open the secrets of volume %q: %w", v.VolumeRef, err)
	}
	out := v.storageVolume()
	out.Secrets = secrets
	return out, nil
}

// storageVolume is the volume from the journal alone, as an undo needs it.
func (v *Record) storageVolume() storage.Volume {
	return drivers.StorageVolume(v.Definition, v.Usage.Modes())
}
