package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/sdk/device"
)

// instance is one workload on this node. Its goroutine (run.live) is the only
// one that takes steps; everyone else reads, waits, or asks it to stop.
type instance struct {
	ref claim.WorkloadRef

	mu      sync.Mutex
	rec     record
	endedAt time.Time
	failure error  // why the start failed
	steps   []Step // the latest state of each step, in the order of their begin
	seq     uint64
	changed notify.Broadcast
	owner   *process.Process
	process *process.Process
	pin     *os.File // keeps the process's mount namespace from being another's
	left    bool     // the goroutine has ended: nobody would let go of these three

	volumes  []*volume
	services []*svc
	secrets  string // the folder of its services' files
	revision revision

	term uint64 // of the lease under which the claims were seen in the ledger last; mu guards it

	waitsFor []claim.WorkloadRef // those of which something is left; mu guards it

	met <-chan struct{} // closed when its claims were compared with the ledger; nil: no need

	resumed bool // an earlier process of the host began it
	intact  bool // everything was mounted as it should be when it was restored

	unsaid error // why the ledger does not know yet that the workload ended

	lost   bool            // it is stopped since its claims are; mu guards it
	cutOff context.Context // ends when the node may not use its volumes any more
	cut    context.CancelFunc

	stop     chan struct{} // closed when a stop is asked for
	hurry    chan struct{} // holds a token when a stop is asked for again
	stopOnce sync.Once
	over     chan struct{} // closed when the goroutine has ended
}

// volume is one volume request while the host works on it.
type volume struct {
	*volumeRecord
	info   claim.Volume   // as the ledger has it; set by the claim
	driver drivers.Driver // set by the claim
}

func newInstance(rec record) *instance {
	i := &instance{
		ref: rec.Spec.WorkloadRef, rec: rec,
		revision: revision{wake: make(chan struct{}, 1)},
		stop:     make(chan struct{}), hurry: make(chan struct{}, 1), over: make(chan struct{}),
	}
	i.cutOff, i.cut = context.WithCancel(context.Background())
	for _, v := range rec.Volumes {
		i.volumes = append(i.volumes, &volume{volumeRecord: v})
	}
	for _, s := range rec.Services {
		i.services = append(i.services, newSvc(s))
	}
	return i
}

// Step is one step of a workload as it went.
type Step struct {
	Name      string
	Volume    string // the request's name; empty for other steps
	Service   string // the service's name; empty for other steps
	Undo      bool
	State     StepState
	StartedAt time.Time
	Took      time.Duration // so far, or in all
	Error     string
	Note      string // what it waits for while it runs; empty: nothing to tell
	Attempt   int    // counts from 1

	seq uint64
}

// StepState is where a step stands.
type StepState string

// The states of a step. Waiting is a failed one that is tried again.
const (
	StepRunning StepState = "running"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
	StepWaiting StepState = "waiting"
)

// askStop asks for a stop; the reason of the first asker counts. A later one makes
// a release that waits for its next attempt make it now.
func (i *instance) askStop(reason string) {
	first := false
	i.stopOnce.Do(func() {
		first = true
		i.mu.Lock()
		if i.rec.Message == "" {
			i.rec.Message = reason
		}
		i.mu.Unlock()
		close(i.stop)
	})
	if first {
		return
	}
	select {
	case i.hurry <- struct{}{}:
	default: // somebody has asked for that already
	}
}

// stopReason is why a stop was asked for.
func (i *instance) stopReason() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return errors.New(i.rec.Message)
}

// update changes the instance under its lock and tells those who wait. Where a
// journal is given, the record is written before update returns, and a failed
// write is the caller's error.
func (i *instance) update(j *journal.Journal, change func(rec *record)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.rec.State
	change(&i.rec)
	i.changed.Notify()
	if j == nil {
		return nil
	}
	err := i.write(j)
	if err != nil && i.rec.State == Running {
		i.rec.State = was // nobody is told that it runs before the journal knows
	}
	return err
}

// write puts the record into the journal. i.mu is held.
func (i *instance) write(j *journal.Journal) error {
	return j.Update(func(tx *journal.Tx) error { return records.Put(tx, key(i.ref), &i.rec) })
}

// letGo stops observing the workload's processes; they live on.
func (i *instance) letGo() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.left = true
	for _, p := range []*process.Process{i.owner, i.process} {
		if p != nil {
			p.Release()
		}
	}
	i.unpin()
}

// unpin lets the mount namespace be forgotten. i.mu is held.
func (i *instance) unpin() {
	if i.pin != nil {
		_ = i.pin.Close()
		i.pin = nil
	}
}

// beginStep notes that a step is under way and returns what ends it.
func (i *instance) beginStep(name string, of subject, undo bool) (end func(state StepState, err error)) {
	at := time.Now()
	step := Step{Name: name, Undo: undo}
	of.label(&step)
	set := func(change func(s *Step)) {
		i.mu.Lock()
		defer i.mu.Unlock()
		n := slices.IndexFunc(i.steps, func(s Step) bool {
			return s.Name == name && s.Volume == step.Volume && s.Service == step.Service && s.Undo == undo
		})
		if n < 0 {
			n = len(i.steps)
			i.steps = append(i.steps, step)
		}
		change(&i.steps[n])
		i.seq++
		i.steps[n].seq = i.seq
		i.changed.Notify()
	}
	set(func(s *Step) {
		s.State, s.StartedAt, s.Took = StepRunning, at, 0
		s.Attempt++
	})
	return func(state StepState, err error) {
		set(func(s *Step) {
			s.State, s.Took, s.Error, s.Note = state, time.Since(at), "", ""
			if err != nil {
				s.Error = err.Error()
			}
		})
	}
}

// noteStep tells what a step of the whole workload that is under way waits for. i.mu is
// held.
func (i *instance) noteStep(name, note string) {
	n := slices.IndexFunc(i.steps, func(s Step) bool { return s.Name == name && !s.Undo })
	if n < 0 || i.steps[n].Note == note {
		return
	}
	i.seq++
	i.steps[n].Note, i.steps[n].seq = note, i.seq
}

// since returns the steps that changed after seq, the state, whether a release
// has to wait, and what is closed on the next change.
func (i *instance) since(seq uint64) (steps []Step, last uint64, state State, waits bool, changed <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.steps {
		if s.seq > seq {
			steps = append(steps, s)
		}
	}
	slices.SortFunc(steps, func(a, b Step) int { return int(a.seq) - int(b.seq) })
	return steps, i.seq, i.seen(), i.rec.Waiting != "", i.changed.Wait()
}

// Workload is a workload as the API shows it: a copy.
type Workload struct {
	Spec      Spec
	State     State
	Message   string // why it failed or ended
	Waiting   string // what its start or its release waits for
	Mounts    []MountPoint
	Steps     []Step
	StartedAt time.Time
	EndedAt   time.Time // zero while it has not ended
	OwnerPID  int       // 0: none
	PID       int       // 0: none
	Services  []ServiceStatus
	Ports     map[string]int // by label
	// WaitsFor are the workloads that its start waits for, since WaitsSince; none: it
	// does not wait.
	WaitsFor   []claim.WorkloadRef
	WaitsSince time.Time
	// SecretsDir is the workload's, where a service has one; empty: none.
	SecretsDir string
	// Devices that it was given, and what it needs to use them. They are shared: nobody
	// changes them.
	Devices     []devices.Given
	Reservation device.Reservation
}

// ServiceStatus is how a service of a workload stands.
type ServiceStatus struct {
	Name    string
	ID      string // in Consul
	ProxyID string // its sidecar's, or its own where it is a gateway; empty: none
	Consul  string // the name of the agent's consul block
	Port    int
	// Of its token; empty and zero: none.
	Accessor  string
	ExpiresAt time.Time
	// Paths on the host; empty: none.
	TokenFile, BootstrapFile string
	// Of its proxy; 0: none.
	AdminPort, ReadyPort int
	// Message says what keeps it from being as it should: a renewal or a sync that fails.
	Message string
}

// MountPoint is what a workload needs of one volume.
type MountPoint struct {
	Volume      claim.VolumeRef
	Request     string
	HostPath    string
	Destination string
	ReadOnly    bool
	Block       bool
}

func (i *instance) startedAt() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.rec.StartedAt
}

func (i *instance) snapshot() Workload {
	i.mu.Lock()
	defer i.mu.Unlock()
	w := Workload{
		Spec: i.rec.Spec, State: i.seen(), Message: i.rec.Message, Waiting: i.rec.Waiting, Steps: slices.Clone(i.steps),
		StartedAt: i.rec.StartedAt, EndedAt: i.endedAt,
	}
	w.Spec.Volumes = slices.Clone(w.Spec.Volumes)
	if len(i.waitsFor) > 0 {
		w.WaitsFor, w.WaitsSince = slices.Clone(i.waitsFor), i.rec.WaitsSince
	}
	if i.rec.Owner != nil {
		w.OwnerPID = i.rec.Owner.PID
	}
	if i.rec.Process != nil {
		w.PID = i.rec.Process.PID
	}
	w.Ports = maps.Clone(i.rec.Ports)
	w.Devices, w.Reservation = i.rec.Devices, i.rec.Reservation
	for _, s := range i.services {
		w.Services = append(w.Services, s.status(i.secrets))
		if s.meshed {
			w.SecretsDir = i.secrets
		}
	}
	for _, v := range i.rec.Volumes {
		if v.Steps["publish"] == done {
			w.Mounts = append(w.Mounts, MountPoint{
				Volume: v.Ref, Request: v.Request.Name, HostPath: v.Target, Destination: v.Request.Destination,
				ReadOnly: v.Usage.ReadOnly, Block: v.Usage.AttachmentMode == claim.BlockDevice,
			})
		}
	}
	return w
}

// startError is the error of a start that failed, or came to w, which was stopped again meanwhile;
// nil for one that runs.
func (i *instance) startError(w Workload) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case !i.rec.Failed && w.State == Running:
		return nil
	case !i.rec.Failed:
		return fmt.Errorf("%s: %w: it was stopped before it could be used: %s", i, ErrFailed, w.Message)
	case i.rec.State == Stopping:
		return fmt.Errorf("%s: %w: %w; undoing it goes on: %s", i, ErrFailed, i.failure, i.rec.Waiting)
	default:
		return fmt.Errorf("%s: %w and was undone: %w", i, ErrFailed, i.failure)
	}
}

func (i *instance) String() string { return fmt.Sprintf("workload %q", i.ref) }
