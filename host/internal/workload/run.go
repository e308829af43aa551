package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/system/vars"
	"github.com/pannier/pannier/host/internal/workload/onbehalf"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// run takes one workload through its actions.
type run struct {
	m *Manager
	*instance
}

// errHostCloses ends a run without undoing it: the journal has all of it, and the next process of
// the host continues.
var errHostCloses = errors.New("the host is closing")

// live is the instance's goroutine: it brings the workload up, waits, and takes it down.
func (r *run) live(ctx context.Context) {
	defer close(r.ended)
	defer r.releaseProcesses()
	if r.state() != Stopping {
		reason := r.bringUp(ctx)
		if errors.Is(reason, errHostCloses) {
			return
		}
		if err := r.set(Stopping, reason); err != nil {
			r.m.log.Error("the journal cannot be written; the workload is released nevertheless", "workload", r.ref, "error",
				err)
		}
		var failed bool
		r.View(func() { failed = r.rec.Failed })
		if failed {
			r.event("failed", reason.Error())
		}
	}
	r.takeDown(ctx)
}

// bringUp does the actions and then waits until the workload has to end. It returns why.
func (r *run) bringUp(ctx context.Context) error {
	defer r.caller.SetToken("")
	stopping, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() { cancel(r.awaitEnd(stopping)) })

	select {
	case <-r.stop:
		return r.stopReason() // before any other action
	default:
	}
	if r.reconciled != nil {
		select {
		case <-r.reconciled:
		case <-stopping.Done():
			if ctx.Err() != nil {
				return errHostCloses
			}
			return context.Cause(stopping)
		}
	}
	todo, starting := groups(), r.traced(onbehalf.With(stopping, r.caller))
	if r.intact {
		todo = nil
	}
	for _, group := range todo { // in the order of the table
		err := sideBySide(starting, r.chains(group), func(ctx context.Context, c chain) error {
			for _, a := range c.actions {
				if !a.when(r, c.of) {
					continue
				}
				if err := r.do(ctx, a, c.of); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return errHostCloses
		case stopping.Err() != nil:
			return fmt.Errorf("the start was given up: %w", context.Cause(stopping))
		default:
			return err
		}
	}
	if err := r.set(Running, nil); err != nil {
		return err
	}
	r.caller.SetToken("") // nothing needs it any more
	r.traceIn(noop.Span{})
	failpoint.Here("workload", "running")
	if !r.intact {
		r.event("started", "")
	}
	r.upkeep(stopping)
	if ctx.Err() != nil {
		return errHostCloses
	}
	return context.Cause(stopping)
}

// chain is the actions of one subject in a group.
type chain struct {
	of      subject
	actions []action
}

// errAnotherStep interrupts the steps beside one that failed. It has nothing of that one's error, which is not theirs
// and may have had no effect.
var errAnotherStep = errors.New("interrupted, since another step failed")

// sideBySide calls do for each chain, and waits for all calls. The first error interrupts the others.
func sideBySide(ctx context.Context, chains []chain, do func(ctx context.Context, c chain) error) (first error) {
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	var running sync.WaitGroup
	var failed sync.Once
	for _, c := range chains {
		running.Go(func() {
			if err := do(ctx, c); err != nil {
				failed.Do(func() {
					first = err
					interrupt(errAnotherStep)
				})
			}
		})
	}
	running.Wait()
	return first
}

// backward undoes what has an intent, in the reverse order. An undo that fails keeps the actions
// before it for the next attempt; other volumes and services continue. The undo of the claims checks
// for itself which volumes are undone. It does not wait for services: a Consul that cannot be
// reached must not keep a claim.
func (r *run) backward(ctx context.Context) error {
	var attempts []*error
	var services sync.WaitGroup
	for _, group := range slices.Backward(groups()) {
		var others sync.WaitGroup
		for _, c := range r.chains(group) {
			beside, err := &others, new(error)
			if c.of.scope == eachService {
				beside = &services
			}
			attempts = append(attempts, err)
			beside.Go(func() {
				if c.of.scope == eachService {
					_ = r.endReported() // then the ledger takes no new token of the workload
				}
				for _, a := range slices.Backward(c.actions) {
					if *err = r.undo(ctx, a, c.of); *err != nil {
						return
					}
				}
			})
		}
		others.Wait()
	}
	services.Wait()
	var errs []error
	for _, err := range attempts { // in a stable order, for the message
		errs = append(errs, *err)
	}
	return errors.Join(errs...)
}

// groups cuts the table into single actions of the whole workload and those between them, whose
// chains are done side by side.
func groups() (out [][]action) {
	for n, a := range actions {
		if a.of != wholeWorkload && n > 0 && actions[n-1].of != wholeWorkload {
			out[len(out)-1] = append(out[len(out)-1], a)
		} else {
			out = append(out, []action{a})
		}
	}
	return out
}

// chains gives each subject its actions of a group.
func (r *run) chains(group []action) (out []chain) {
	for _, of := range r.subjects() {
		own := slices.DeleteFunc(slices.Clone(group), func(a action) bool { return a.of != of.scope })
		if len(own) > 0 {
			out = append(out, chain{of, own})
		}
	}
	return out
}

// do does one action. Its intent is in the journal before, and its success after it. An action that has an intent may
// be repeated.
func (r *run) do(ctx context.Context, a action, of subject) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	before := r.progress(a.name, of)
	if before == "" {
		if err := r.mark(a, of, step.Intended); err != nil {
			return err
		}
	}
	failpoint.Here(a.name, "intended")
	ctx, end := r.beginStep(ctx, a.name, of, false)
	err := a.do(r, ctx, of)
	failpoint.Here(a.name, "called")
	switch {
	case err == nil:
		err = r.mark(a, of, step.Done)
	case step.HadNoEffect(err) && before == "":
		err = errors.Join(err, r.mark(a, of, ""))
	}
	failpoint.Here(a.name, "noted")
	if err != nil {
		end(StepFailed, err)
		return err
	}
	end(StepDone, nil)
	return nil
}

// undo undoes one action that has an intent, and then removes the intent from the journal.
func (r *run) undo(ctx context.Context, a action, of subject) error {
	if r.progress(a.name, of) == "" {
		return nil
	}
	failpoint.Here(a.name, "undo")
	ctx, end := r.beginStep(ctx, a.name, of, true)
	err := a.undo(r, ctx, of)
	failpoint.Here(a.name, "undone")
	if err == nil {
		err = r.mark(a, of, "")
	}
	failpoint.Here(a.name, "forgotten")
	if err != nil {
		end(StepWaiting, err)
		return err
	}
	end(StepDone, nil)
	return nil
}

// takeDown undoes everything, as often as it takes, and removes the record.
func (r *run) takeDown(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = r.m.limits.undo.Min, r.m.limits.undo.Max
	for {
		changed := r.m.Drivers.Changed() // before the attempt: no change is missed
		wasForced := r.forced.Err() != nil
		err := r.attempt(ctx)
		if err == nil {
			r.finish()
			return
		}
		if ctx.Err() != nil {
			return
		}
		if !wasForced && r.forced.Err() != nil {
			continue
		}
		next := pause.NextBackOff()
		if r.isCutOff() && r.inUse() { // little, while a node that was cut off has something mounted
			next = min(next, r.m.limits.undo.Min)
		}
		r.waits(r.traced(ctx), err, next)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-r.hurry:
		case <-time.After(next):
		}
		r.Update(func() { r.retried.NextAt = time.Time{} })
	}
}

// attempt makes one attempt to release the workload: its services leave the catalog, its processes end, and then go its
// mounts and its claims. Without the ledger it goes as far as the mounts: a node that is cut off must be able to
// unmount its volumes. An attempt that is not by force ends when an operator forces it.
func (r *run) attempt(ctx context.Context) (err error) {
	ctx, end := r.m.Traces.Begin(r.traced(ctx), "release", tracing.Workload.String(r.ref.String()),
		tracing.Node.String(r.m.Node))
	defer func() { end(err) }()
	if r.forced.Err() == nil {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(r.forced, func() { cancel(errForced) })() //nolint:contextcheck // the force, besides ctx
	} else {
		r.m.volumes.Abort(r.volumes) // first: processes that wait for a file system do not end
	}
	r.leave(ctx)
	if err := r.endProcesses(ctx); err != nil {
		return err
	}
	failpoint.Here("workload", "stopping")
	r.endReported = r.reportEnd(ctx)
	if err := cmp.Or(r.backward(ctx), r.endReported()); err != nil { // both have ended
		return err
	}
	if p := r.rec.Process; p != nil {
		if err := r.m.releaseProcess(ctx, r.instance, *p); err != nil {
			return err
		}
	}
	defer failpoint.Here("workload", "gone")
	return r.forget()
}

// reportEnd records in the ledger that the workload has ended, while its volumes are unmounted: the undo of its
// services and the release of its claims wait for it. A node that was cut off unmounts first. The function that it
// returns waits for the outcome.
func (r *run) reportEnd(ctx context.Context) (outcome func() error) {
	if r.isCutOff() && r.inUse() {
		return func() error { return errCutOff }
	}
	var report sync.WaitGroup
	var err error
	report.Go(func() {
		defer failpoint.Here("workload", "ended")
		whole := subject{progress: r.rec.Steps}
		if r.progress(awaitStep, whole) == "" && r.progress(claimStep, whole) == "" {
			return // the ledger has no record of it
		}
		ctx, cancel := context.WithTimeout(ctx, r.m.limits.ledger)
		defer cancel()
		if _, err = cluster.Apply(ctx, r.m.Ledger, command.End(r.inLedger())); err != nil {
			err = fmt.Errorf("mark %s as ended in the ledger: %w", r.instance, err)
		}
	})
	return func() error {
		report.Wait()
		return err
	}
}

// inLedger is the run as the ledger knows it.
func (r *run) inLedger() (out claim.Run) {
	r.View(func() { out = claim.Run{Ref: r.ref, Node: r.m.Node, ID: r.rec.RunID, Index: r.rec.Run} })
	return out
}

// finish reports that nothing is left of the workload on this node.
func (r *run) finish() {
	r.m.Ports.Release(r.ref)
	r.Update(func() {
		r.rec.State, r.rec.Waiting, r.retried = Stopped, "", Release{}
		if r.rec.Failed {
			r.rec.State = Failed
		}
		r.endedAt = time.Now()
	})
	r.event("released", r.snapshot().Message)
}

func (r *run) event(kind, message string) { r.eventWith(kind, message, nil) }

func (r *run) eventWith(kind, message string, details map[string]string) {
	r.m.Events.Publish(events.Event{
		Topic: events.TopicWorkload, Type: kind, Subject: r.ref.String(), Message: message, Details: details,
	})
}

func (r *run) state() (s State) {
	r.View(func() { s = r.rec.State })
	return s
}

// set moves the workload to another state; reason is why it goes down.
func (r *run) set(s State, reason error) error {
	return r.Save(func() {
		if s == Stopping {
			for _, svc := range r.services {
				svc.NoteUnmade()
			}
			r.rec.Failed, r.failure = r.rec.State == Starting || r.lost, reason
			r.rec.Message = reason.Error()
		}
		r.rec.State = s
	})
}

// progress is how far a subject's action has come.
func (r *run) progress(name string, of subject) (p step.Progress) {
	r.View(func() { p = of.progress[name] })
	return p
}

// mark writes the progress of an action to the journal, with what the action has changed in the records; empty: it has
// nothing to undo any more.
func (r *run) mark(a action, of subject, p step.Progress) error {
	return r.Save(func() {
		if p == "" {
			delete(of.progress, a.name)
		} else {
			of.progress[a.name] = p
		}
	})
}

// runsEnvoy reports whether the spec has a sidecar of the service that gets its bootstrap.
func (r *run) runsEnvoy(service string) (does bool) {
	r.View(func() {
		for _, c := range r.rec.Spec.Sidecars {
			does = does || (c.Service == "" || c.Service == service) && slices.Contains(c.Command, "${"+vars.Bootstrap+"}")
		}
	})
	return does
}

// upkeep keeps the services of a running workload in order, until ctx ends. A failure is reported
// and retried; it never ends the workload.
func (r *run) upkeep(ctx context.Context) {
	var all sync.WaitGroup
	if r.intact && r.volumes.HasClaims() {
		all.Go(func() { r.guardAgain(ctx) })
	}
	for _, s := range r.services {
		if s.Identified() {
			all.Go(func() { r.m.services.Keep(ctx, s) })
		}
		if s.Proxied() {
			all.Go(func() { r.m.services.WatchProxy(ctx, s, r.runsEnvoy(s.Name)) })
		}
	}
	if len(r.services) > 0 {
		all.Go(func() { r.keepRegistered(ctx) })
	}
	<-ctx.Done()
	all.Wait()
}
