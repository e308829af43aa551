package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// A workload's start, from top to bottom; its stop, from bottom to top.
//
// An action of the whole workload is done alone. Those of each volume, and those of each service,
// are done in their order for one of them, and side by side for all.
var actions = []action{
	ofAll(awaitStep, (*run).awaits, (*run).await, (*run).endAwait),
	ofAll(claimStep, nil, (*run).claim, (*run).release),
	ofAll("reserve", (*run).wantsDevices, (*run).reserve, (*run).freeDevices),
	ofVolume(volumesteps.AttachStep, (*volumesteps.Volume).Attaches, (*volumesteps.Steps).Attach,
		(*volumesteps.Steps).LeaveAttachment),
	ofVolume(volumesteps.StageStep, (*volumesteps.Volume).Stages, (*volumesteps.Steps).Stage,
		(*volumesteps.Steps).Unstage),
	ofVolume(volumesteps.PublishStep, nil, (*volumesteps.Steps).Publish, (*volumesteps.Steps).Unpublish),
	ofService(registerStep, (*servicesteps.Service).Registers, (*servicesteps.Steps).Register,
		(*servicesteps.Steps).Deregister),
	ofService(identifyStep, (*servicesteps.Service).Identified, (*servicesteps.Steps).Identify,
		(*servicesteps.Steps).Revoke),
	ofService("bootstrap", (*servicesteps.Service).Proxied, (*servicesteps.Steps).Bootstrap,
		(*servicesteps.Steps).RemoveBootstrap),
}

// The steps that others refer to: await and claim make the workload known to the ledger, claim
// marks the tokens that identify will derive, and a changed spec is registered again.
const (
	awaitStep    = "await"
	claimStep    = "claim"
	registerStep = "register"
	identifyStep = "identify"
)

// leaveStep is shown while a workload that is stopped leaves Consul's catalog, before its process is asked to end: the
// undo of register comes first then.
const leaveStep = "leave"

// action is what one step of the table does and undoes.
type action struct {
	name string
	of   scope
	when func(r *run, of subject) bool

	do, undo func(r *run, ctx context.Context, of subject) error
}

// scope is the kind of subject that an action has.
type scope int

const (
	wholeWorkload scope = iota
	eachVolume
	eachService
)

// subject is what one action is done for: the workload, or one of its volumes or services.
type subject struct {
	scope scope
	name  string // of the volume request or the service
	// progress of its steps; the instance's lock guards it.
	progress map[string]step.Progress

	volume  *volumesteps.Volume
	service *servicesteps.Service
}

// subjects are the workload and all its volumes and services.
func (i *instance) subjects() []subject {
	out := []subject{{scope: wholeWorkload, progress: i.rec.Steps}}
	for _, v := range i.volumes.Volumes {
		out = append(out, subject{scope: eachVolume, name: v.Request.Name, progress: v.Steps, volume: v})
	}
	for _, s := range i.services {
		out = append(out, serviceSubject(s))
	}
	return out
}

func serviceSubject(s *servicesteps.Service) subject {
	return subject{scope: eachService, name: s.Name, progress: s.Steps, service: s}
}

// label says in a Step which subject it has.
func (of subject) label(s *Step) {
	switch of.scope {
	case eachVolume:
		s.Volume = of.name
	case eachService:
		s.Service = of.name
	}
}

// ofAll makes an action of the whole workload; a nil when is always true.
func ofAll(name string, when func(*run) bool, do, undo func(*run, context.Context) error) action {
	return action{
		name: name, of: wholeWorkload,
		when: func(r *run, _ subject) bool { return when == nil || when(r) },
		do:   func(r *run, ctx context.Context, _ subject) error { return do(r, ctx) },
		undo: func(r *run, ctx context.Context, _ subject) error { return undo(r, ctx) },
	}
}

// ofVolume makes an action of each volume.
func ofVolume(name string, when func(*volumesteps.Volume) bool, do,
	undo func(*volumesteps.Steps, context.Context, *volumesteps.Volume) error,
) action {
	return action{
		name: name, of: eachVolume,
		when: func(_ *run, of subject) bool { return when == nil || when(of.volume) },
		do:   func(r *run, ctx context.Context, of subject) error { return do(r.m.volumes, ctx, of.volume) },
		undo: func(r *run, ctx context.Context, of subject) error { return undo(r.m.volumes, ctx, of.volume) },
	}
}

// ofService makes an action of each service.
func ofService(name string, when func(*servicesteps.Service) bool, do,
	undo func(*servicesteps.Steps, context.Context, *servicesteps.Service) error,
) action {
	return action{
		name: name, of: eachService,
		when: func(_ *run, of subject) bool { return when == nil || when(of.service) },
		do:   func(r *run, ctx context.Context, of subject) error { return do(r.m.services, ctx, of.service) },
		undo: func(r *run, ctx context.Context, of subject) error { return undo(r.m.services, ctx, of.service) },
	}
}

// claim takes all the workload's claims and records the tokens that Consul will be asked for, in
// one ledger command.
func (r *run) claim(ctx context.Context) error {
	want, err := r.m.volumes.Claims.Want(ctx, r.volumes)
	if err != nil {
		return step.NoEffect(err)
	}
	tokens, fresh, err := r.markTokens()
	if err != nil {
		return err
	}
	epoch := r.m.Lease.Epoch() // before: a claim that is granted now is not released later under it
	started, err := cluster.Apply(ctx, r.m.Ledger, command.Start(r.inLedger(), want, tokens...))
	if err != nil {
		err = fmt.Errorf("claim its volumes on node %q: %w", r.m.Node, err)
	}
	if step.Refused(err) {
		err = errors.Join(err, r.unmarkTokens(fresh))
		if !r.m.RemoteLedger {
			return step.NoEffect(err)
		}
		// An earlier copy of the command may be on its way. The undo ends the run in the ledger, which then refuses it.
		return err
	}
	if err != nil {
		return err
	}
	r.Update(func() { r.rec.Run = started.Workload.CreateIndex })
	return r.m.volumes.Claims.Granted(ctx, r.volumes, started, epoch)
}

// markTokens gives the identify steps an intent before the ledger has their tokens: from then on
// they are to be undone. fresh are the services that had none.
func (r *run) markTokens() (tokens []claim.Token, fresh []*servicesteps.Service, err error) {
	for _, s := range r.services {
		if !s.Identified() {
			continue
		}
		tokens = append(tokens, s.Token)
		if s.Steps[identifyStep] == "" {
			fresh = append(fresh, s)
		}
	}
	if len(fresh) == 0 {
		return tokens, nil, nil
	}
	return tokens, fresh, r.Save(func() {
		for _, s := range fresh {
			s.Steps[identifyStep] = step.Intended
		}
	})
}

// unmarkTokens removes the intents: the ledger has refused the tokens.
func (r *run) unmarkTokens(fresh []*servicesteps.Service) error {
	if len(fresh) == 0 {
		return nil
	}
	return r.Save(func() {
		for _, s := range fresh {
			delete(s.Steps, identifyStep)
		}
	})
}

// release releases the claims of the volumes that are unmounted.
func (r *run) release(ctx context.Context) error {
	if err := r.endReported(); err != nil {
		return fmt.Errorf("the claims are kept: %w", err)
	}
	return r.m.volumes.Release(ctx, r.volumes)
}
