package workload

import "context"

// A workload's start, from top to bottom; its stop, from bottom to top.
//
// A step of the whole workload is taken alone. Steps of each volume, and those of each
// service, run in their order for one of them, and side by side for all.
var steps = []step{
	ofAll(awaitStep, awaits, (*run).await, (*run).unawait),
	ofAll(claimStep, anyway, (*run).claim, (*run).release),
	ofAll("reserve", asksForDevices, (*run).reserve, (*run).freeDevices),
	ofVolume("attach", attaches, (*run).attach, (*run).leaveAttachment),
	ofVolume("stage", stages, (*run).stage, (*run).unstage),
	ofVolume("publish", always, (*run).publish, (*run).withdraw),
	ofService(registerStep, all, (*run).register, (*run).deregister),
	ofService(identifyStep, meshed, (*run).identify, (*run).disown),
	ofService("bootstrap", proxied, (*run).bootstrap, (*run).dropBootstrap),
}

// The steps that others refer to: with await and claim the ledger learns of the workload,
// claim notes what identify will ask for, and a changed spec is registered again.
const (
	awaitStep    = "await"
	claimStep    = "claim"
	registerStep = "register"
	identifyStep = "identify"
)

// step is one reversible action.
type step struct {
	name string
	of   scope
	when func(of subject) bool

	do, undo func(r *run, ctx context.Context, of subject) error
}

// scope is what a step is one of.
type scope int

const (
	wholeWorkload scope = iota
	eachVolume
	eachService
)

// subject is what one step is of: the workload, or one of its volumes or services.
type subject interface {
	scope() scope
	// progress is how far each of its steps has come; instance.mu guards it.
	progress() map[string]progress
	// label says in a Step what it is of.
	label(s *Step)
}

// ofAll makes a step of the whole workload.
func ofAll(name string, when func(i *instance) bool, do, undo func(r *run, ctx context.Context) error) step {
	return step{
		name: name, of: wholeWorkload,
		when: func(of subject) bool { return when(of.(whole).instance) },
		do:   func(r *run, ctx context.Context, _ subject) error { return do(r, ctx) },
		undo: func(r *run, ctx context.Context, _ subject) error { return undo(r, ctx) },
	}
}

// ofVolume makes a step of each volume.
func ofVolume(name string, when func(v *volume) bool, do, undo func(r *run, ctx context.Context, v *volume) error) step {
	return step{
		name: name, of: eachVolume,
		when: func(of subject) bool { return when(of.(*volume)) },
		do:   func(r *run, ctx context.Context, of subject) error { return do(r, ctx, of.(*volume)) },
		undo: func(r *run, ctx context.Context, of subject) error { return undo(r, ctx, of.(*volume)) },
	}
}

// ofService makes a step of each service.
func ofService(name string, when func(s *svc) bool, do, undo func(r *run, ctx context.Context, s *svc) error) step {
	return step{
		name: name, of: eachService,
		when: func(of subject) bool { return when(of.(*svc)) },
		do:   func(r *run, ctx context.Context, of subject) error { return do(r, ctx, of.(*svc)) },
		undo: func(r *run, ctx context.Context, of subject) error { return undo(r, ctx, of.(*svc)) },
	}
}

func anyway(*instance) bool { return true }

func awaits(i *instance) bool { return len(i.rec.Spec.After)+len(i.rec.Spec.Replaces) > 0 }

func asksForDevices(i *instance) bool { return len(i.rec.Spec.Devices) > 0 }

func always(*volume) bool { return true }

// attaches: the driver has a controller service with PUBLISH_UNPUBLISH_VOLUME (CSI spec,
// ControllerPublishVolume). One that has no controller service on this node may have one on
// others: then who attaches knows.
func attaches(v *volume) bool {
	c := v.driver.Fingerprint.Controller
	return c == nil || c.AttachDetach
}

// stages: the driver has STAGE_UNSTAGE_VOLUME (CSI spec, NodeStageVolume).
func stages(v *volume) bool {
	n := v.driver.Fingerprint.Node
	return n != nil && n.StageUnstage
}

func all(*svc) bool { return true }

// meshed: the service is native, or has a sidecar, or is a gateway.
func meshed(s *svc) bool { return s.meshed }

// proxied: a sidecar or a gateway stands for the service.
func proxied(s *svc) bool { return s.proxied }

// whole is the workload itself as the subject of a step.
type whole struct{ *instance }

func (whole) scope() scope                      { return wholeWorkload }
func (w whole) progress() map[string]progress   { return w.rec.Steps }
func (whole) label(*Step)                       {}
func (*volume) scope() scope                    { return eachVolume }
func (*svc) scope() scope                       { return eachService }
func (v *volume) progress() map[string]progress { return v.Steps }
func (s *svc) progress() map[string]progress    { return s.Steps }
func (v *volume) label(s *Step)                 { s.Volume = v.Request.Name }
func (s *svc) label(step *Step)                 { step.Service = s.name }
