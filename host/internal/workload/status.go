package workload

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/storage"
)

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

// beginStep notes that a step has begun, also in the trace, and returns its context and the function that ends it.
func (r *run) beginStep(ctx context.Context, name string, of subject, undo bool,
) (_ context.Context, end func(state StepState, err error)) {
	direction, what := "do", "step "
	if undo {
		direction, what = "undo", "undo "
	}
	attributes := []attribute.KeyValue{tracing.Workload.String(r.ref.String())}
	switch of.scope {
	case eachVolume:
		attributes = append(attributes, tracing.Volume.String(cmp.Or(of.volume.Request.Source, of.name)))
	case eachService:
		attributes = append(attributes, tracing.Service.String(of.name))
	}
	ctx, span := tracing.Span(ctx, what+name, attributes...)
	at := time.Now()
	begun := Step{Name: name, Undo: undo}
	of.label(&begun)
	set := func(change func(s *Step)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := slices.IndexFunc(r.steps, func(s Step) bool {
			return s.Name == name && s.Volume == begun.Volume && s.Service == begun.Service && s.Undo == undo
		})
		if n < 0 {
			n = len(r.steps)
			r.steps = append(r.steps, begun)
		}
		change(&r.steps[n])
		r.seq++
		r.steps[n].seq = r.seq
		r.changed.Notify()
	}
	set(func(s *Step) {
		s.State, s.StartedAt, s.Took = StepRunning, at, 0
		s.Attempt++
	})
	tries, reported := 0, ""
	ctx = step.WithNotes(ctx, func(err error) {
		note := ""
		if err != nil {
			note = err.Error()
			tries++
		}
		set(func(s *Step) { s.Note = note })
		if tries > 1 && note != "" && note != reported {
			reported = note
			r.eventWith("step-waits", note, map[string]string{"step": strings.TrimSpace(name + " " + of.name)})
		}
	})
	return ctx, func(state StepState, err error) {
		tracing.End(span, err)
		result := "ok"
		if err != nil {
			result = "error"
		}
		r.m.Metrics.WithLabelValues(name, direction, result).Observe(time.Since(at).Seconds())
		set(func(s *Step) {
			s.State, s.Took, s.Error, s.Note = state, time.Since(at), "", ""
			if err != nil {
				s.Error = err.Error()
			}
		})
	}
}

// noteStep notes what a running step of the whole workload waits for. i.mu is held.
func (i *instance) noteStep(name, note string) {
	n := slices.IndexFunc(i.steps, func(s Step) bool { return s.Name == name && !s.Undo })
	if n < 0 || i.steps[n].Note == note {
		return
	}
	i.seq++
	i.steps[n].Note, i.steps[n].seq = note, i.seq
}

// noteVolume notes what the running steps of the driver's volume wait for.
func (i *instance) noteVolume(driver, externalID, note string) {
	i.Update(func() {
		for _, v := range i.volumes.Volumes {
			if v.PluginID != driver || v.ExternalID != externalID {
				continue
			}
			for n, s := range i.steps {
				if s.Volume == v.Request.Name && s.State == StepRunning {
					i.seq++
					i.steps[n].Note, i.steps[n].seq = note, i.seq
				}
			}
		}
	})
}

// noteRetries shows what storage plugins report of calls that they repeat, until the manager is closed.
func (m *Manager) noteRetries(reports iter.Seq[events.Event]) {
	for e := range reports {
		if e.Topic != events.TopicPlugin || e.Type != storage.EventRetries {
			continue
		}
		for _, i := range m.known.all() {
			i.noteVolume(e.Details["subject"], e.Details[storage.DetailVolume], e.Message)
		}
	}
}

// since returns the steps that changed after seq, the state, whether a release has to wait, and
// a channel that is closed on the next change.
func (i *instance) since(seq uint64) (steps []Step, last uint64, state State, waits bool, changed <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.steps {
		if s.seq > seq {
			steps = append(steps, s)
		}
	}
	slices.SortFunc(steps, func(a, b Step) int { return int(a.seq) - int(b.seq) })
	return steps, i.seq, i.shownState(), i.rec.Waiting != "", i.changed.Wait()
}

// Workload is a workload as the API shows it: a copy.
type Workload struct {
	Spec      Spec
	State     State
	Message   string // why it failed or ended
	Waiting   string // what its start or its release waits for
	Release   Release
	Mounts    []MountPoint
	Steps     []Step
	StartedAt time.Time
	EndedAt   time.Time // zero while it has not ended
	OwnerPID  int       // 0: none
	PID       int       // 0: none
	Services  []servicesteps.Status
	Ports     map[string]int // by label
	// WaitsFor are the workloads that its start waits for, since WaitsSince; empty: it does not
	// wait.
	WaitsFor   []claim.WorkloadRef
	WaitsSince time.Time
	// SecretsDir is the folder of its services' secrets; empty: none has any.
	SecretsDir string
	// Credentials are the secrets that the spec's units may load.
	Credentials []servicesteps.Credential
	// Devices of the workload, and what it needs to use them. They are shared: do not change them.
	Devices     []devices.Given
	Reservation device.Reservation
}

// MountPoint is what a workload needs of one volume.
type MountPoint struct {
	Volume      claim.VolumeRef
	Request     string
	HostPath    string
	Destination string
	ReadOnly    bool
	Block       bool
	Driver      string // that made an ephemeral volume; empty: it is registered
	// SUID and Dev say that set-user-ID programs and device files in it work.
	SUID, Dev bool
}

func (i *instance) snapshot() Workload {
	i.mu.Lock()
	defer i.mu.Unlock()
	w := Workload{
		Spec: i.rec.Spec, State: i.shownState(), Message: i.rec.Message, Waiting: i.rec.Waiting, Steps: slices.Clone(i.steps),
		Release: i.retried, StartedAt: i.rec.StartedAt, EndedAt: i.endedAt,
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
		w.Services = append(w.Services, s.Status(i.secrets))
		if i.rec.Left && s.Registered == nil && w.State == Running {
			w.Services[len(w.Services)-1].Message = "it has left Consul's catalog: pannier workload start registers it again"
		}
		if why := w.Services[len(w.Services)-1].Message; why != "" && w.State == Running && w.Message == "" {
			w.Message = fmt.Sprintf("service %q: %s", s.Name, why)
		}
		if s.Identified() {
			w.SecretsDir = i.secrets
		}
		if len(i.rec.Spec.Units) > 0 {
			w.Credentials = append(w.Credentials, s.Credentials(i.secrets)...)
		}
	}
	for _, v := range i.rec.Volumes {
		if v.Published() {
			if w.State == Running {
				w.Message = cmp.Or(w.Message, v.Unexpanded)
			}
			w.Mounts = append(w.Mounts, MountPoint{
				Volume: v.VolumeRef, Request: v.Request.Name, HostPath: v.Target, Destination: v.Request.Destination,
				ReadOnly: v.Usage.ReadOnly, Block: v.Usage.AttachmentMode == claim.BlockDevice,
				SUID: v.SUID(), Dev: v.Dev(), Driver: v.Request.Driver,
			})
		}
	}
	return w
}

// startError is the error of a start that failed, or that ended in w because the workload was
// stopped; nil for a workload that runs.
func (i *instance) startError(w Workload) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case !i.rec.Failed && w.State == Running:
		return nil
	case !i.rec.Failed:
		return fmt.Errorf("%s: %w: it was stopped before it could be used: %s", i, ErrFailed, w.Message)
	case i.rec.State == Stopping:
		return fmt.Errorf("%s: %w: %w; undoing it continues: %s", i, ErrFailed, i.failure, i.rec.Waiting)
	default:
		return fmt.Errorf("%s: %w and was undone: %w", i, ErrFailed, i.failure)
	}
}

func (i *instance) String() string { return fmt.Sprintf("workload %q", i.ref) }
