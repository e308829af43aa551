package workload

import "context"

// A workload's start, from top to bottom; its stop, from bottom to top.
//
// A step of the whole workload is taken alone. Steps of each volume run in their order
// for one volume, and side by side for several.
var steps = []step{
	ofAll("claim", (*run).claim, (*run).release),
	ofVolume("attach", attaches, (*run).attach, (*run).leaveAttachment),
	ofVolume("stage", stages, (*run).stage, (*run).unstage),
	ofVolume("publish", always, (*run).publish, (*run).withdraw),
}

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
)

// subject is what one step is of: the workload, or one of its volumes.
type subject interface {
	scope() scope
	// progress is how far each of its steps has come; instance.mu guards it.
	progress() map[string]progress
	// label says in a Step what it is of.
	label(s *Step)
}

// ofAll makes a step of the whole workload.
func ofAll(name string, do, undo func(r *run, ctx context.Context) error) step {
	return step{
		name: name, of: wholeWorkload,
		when: func(subject) bool { return true },
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

func always(*volume) bool { return true }

// attaches: the driver has a controller service with PUBLISH_UNPUBLISH_VOLUME
// (CSI spec, ControllerPublishVolume).
func attaches(v *volume) bool {
	c := v.driver.Fingerprint.Controller
	return c != nil && c.AttachDetach
}

// stages: the driver has STAGE_UNSTAGE_VOLUME (CSI spec, NodeStageVolume).
func stages(v *volume) bool {
	n := v.driver.Fingerprint.Node
	return n != nil && n.StageUnstage
}

// whole is the workload itself as the subject of a step.
type whole struct{ *instance }

func (whole) scope() scope                      { return wholeWorkload }
func (w whole) progress() map[string]progress   { return w.rec.Steps }
func (whole) label(*Step)                       {}
func (*volume) scope() scope                    { return eachVolume }
func (v *volume) progress() map[string]progress { return v.Steps }
func (v *volume) label(s *Step)                 { s.Volume = v.Request.Name }
