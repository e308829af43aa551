package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/journal"
)

// run carries out the step table for one instance.
type run struct {
	*Manager
	*instance
}

// untouchedError is a Do's way to say that it failed before it did anything, so
// that there is nothing to undo.
type untouchedError struct{ error }

func (e untouchedError) Unwrap() error { return e.error }

// errHostCloses ends a run without unwinding it: the journal has all of it, and
// the next process of the host goes on.
var errHostCloses = errors.New("the host is closing")

// live is the instance's goroutine: up, wait, down.
func (r *run) live(ctx context.Context) {
	defer close(r.over)
	defer r.letGo()
	if r.state() != Stopping {
		reason := r.bringUp(ctx)
		if errors.Is(reason, errHostCloses) {
			return
		}
		if err := r.set(Stopping, reason); err != nil {
			r.log.Error("the journal cannot be written; the workload is released all the same", "workload", r.ref, "error", err)
		}
		if r.failed() {
			r.event("failed", reason.Error())
		}
	}
	r.takeDown(ctx)
}

// bringUp takes the steps and then waits until the workload has to go. It
// returns why.
func (r *run) bringUp(ctx context.Context) error {
	stopping, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() { cancel(r.awaitEnd(stopping)) })

	select {
	case <-r.stop:
		return r.stopReason() // not one step more
	default:
	}
	if err := r.awaitMet(stopping); err != nil {
		if ctx.Err() != nil {
			return errHostCloses
		}
		return err
	}
	if !r.intact {
		if err := r.forward(stopping); err != nil {
			if ctx.Err() != nil {
				return errHostCloses
			}
			if stopping.Err() != nil {
				return fmt.Errorf("the start was given up: %w", context.Cause(stopping))
			}
			return err
		}
	}
	if err := r.set(Running, nil); err != nil {
		return err
	}
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

// chain is what one subject has of a group of steps.
type chain struct {
	of    subject
	steps []step
}

// forward takes every step, in the table's order.
func (r *run) forward(ctx context.Context) error {
	for _, group := range groups() {
		sideBySide, ctx := errgroup.WithContext(ctx)
		for _, c := range r.chains(group) {
			sideBySide.Go(func() error {
				for _, s := range c.steps {
					if !s.when(c.of) {
						continue
					}
					if err := r.do(ctx, s, c.of); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := sideBySide.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// backward undoes what has an intent, in the reverse order. What fails keeps
// the steps before it for the next attempt; other volumes and services go on. A step of
// the whole workload sees for itself which volumes are done with. It does not wait for
// services: a Consul that is away must not keep a claim.
func (r *run) backward(ctx context.Context) error {
	var attempts []*error
	var services sync.WaitGroup
	for _, group := range slices.Backward(groups()) {
		var others sync.WaitGroup
		for _, c := range r.chains(group) {
			beside, err := &others, new(error)
			if c.of.scope() == eachService {
				beside = &services
			}
			attempts = append(attempts, err)
			beside.Go(func() { *err = r.undoChain(ctx, c) })
		}
		others.Wait()
	}
	services.Wait()
	var errs []error
	for _, err := range attempts { // in an order that stays the same
		errs = append(errs, *err)
	}
	return errors.Join(errs...)
}

func (r *run) undoChain(ctx context.Context, c chain) error {
	for _, s := range slices.Backward(c.steps) {
		if err := r.undo(ctx, s, c.of); err != nil {
			return err
		}
	}
	return nil
}

// groups cuts the table into single steps of the whole workload and those between
// them, whose chains go side by side.
func groups() (out [][]step) {
	for n, s := range steps {
		if s.of != wholeWorkload && n > 0 && steps[n-1].of != wholeWorkload {
			out[len(out)-1] = append(out[len(out)-1], s)
		} else {
			out = append(out, []step{s})
		}
	}
	return out
}

// chains gives each subject its steps of a group.
func (r *run) chains(group []step) (out []chain) {
	for _, of := range r.subjects() {
		own := slices.DeleteFunc(slices.Clone(group), func(s step) bool { return s.of != of.scope() })
		if len(own) > 0 {
			out = append(out, chain{of, own})
		}
	}
	return out
}

// subjects are the workload and all that it has several of.
func (r *run) subjects() []subject {
	out := []subject{whole{r.instance}}
	for _, v := range r.volumes {
		out = append(out, v)
	}
	for _, s := range r.services {
		out = append(out, s)
	}
	return out
}

func (r *run) do(ctx context.Context, s step, of subject) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	before := r.progress(s, of)
	if before == "" {
		if err := r.mark(s, of, intended); err != nil {
			return err
		}
	}
	failpoint.Here(s.name, "intended")
	end := r.beginStep(s.name, of, false)
	err := s.do(r, ctx, of)
	failpoint.Here(s.name, "called")
	if err == nil {
		err = r.mark(s, of, done)
	}
	failpoint.Here(s.name, "noted")
	if err != nil {
		end(StepFailed, err)
		if errors.As(err, new(untouchedError)) && before == "" {
			return errors.Join(err, r.mark(s, of, ""))
		}
		return err
	}
	end(StepDone, nil)
	return nil
}

func (r *run) undo(ctx context.Context, s step, of subject) error {
	if r.progress(s, of) == "" {
		return nil
	}
	failpoint.Here(s.name, "undo")
	end := r.beginStep(s.name, of, true)
	err := s.undo(r, ctx, of)
	failpoint.Here(s.name, "undone")
	if err == nil {
		err = r.mark(s, of, "")
	}
	failpoint.Here(s.name, "forgotten")
	if err != nil {
		end(StepWaiting, err)
		return err
	}
	end(StepDone, nil)
	return nil
}

// takeDown undoes everything, as often as it takes, and forgets the record.
func (r *run) takeDown(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = r.limits.undoMin, r.limits.undoMax
	for {
		changed := r.Drivers.Changed() // before the attempt: nothing is missed
		err := r.down(ctx)
		if err == nil {
			r.finish()
			return
		}
		if ctx.Err() != nil {
			return
		}
		_ = r.update(nil, func(rec *record) {
			if rec.Waiting != err.Error() { // said once, however often it is tried
				r.log.Warn("the workload is not released yet, it is tried again", "workload", r.ref, "error", err)
			}
			rec.Waiting = err.Error()
		})
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-r.hurry:
		case <-time.After(r.hurried(pause.NextBackOff())):
		}
	}
}

// down is one attempt: no process of the workload, then no mount, then no claim.
// Without the ledger it goes as far as the mounts: a node that is cut off must be
// able to let go of its volumes.
func (r *run) down(ctx context.Context) error {
	if err := r.endProcesses(ctx); err != nil {
		return err
	}
	failpoint.Here("workload", "stopping")
	r.unsaid = r.sayEnded(ctx)
	failpoint.Here("workload", "ended")
	if err := r.backward(ctx); err != nil {
		return err
	}
	if p := r.rec.Process; p != nil {
		if err := r.releaseProcess(ctx, r.instance, *p); err != nil {
			return err
		}
	}
	defer failpoint.Here("workload", "gone")
	return r.journal.Update(func(tx *journal.Tx) error { return records.Delete(tx, key(r.ref)) })
}

// sayEnded writes to the ledger that the claims are on their way out, before the
// first call that takes them there. A node that was cut off has no time to ask: it
// unmounts first.
func (r *run) sayEnded(ctx context.Context) error {
	if r.isCutOff() && r.inUse() {
		return errCutOff
	}
	if r.taken(awaitStep) == "" && r.taken(claimStep) == "" {
		return nil // it has no record there
	}
	ctx, cancel := context.WithTimeout(ctx, r.limits.ledger)
	defer cancel()
	if err := r.Ledger.EndWorkload(ctx, r.inLedger()); err != nil {
		return fmt.Errorf("mark %s as ended in the ledger: %w", r.instance, err)
	}
	return nil
}

// finish tells that nothing is left of the workload on this node.
func (r *run) finish() {
	r.Ports.Release(holder(r.ref))
	_ = r.update(nil, func(rec *record) {
		rec.State, rec.Waiting = Stopped, ""
		if rec.Failed {
			rec.State = Failed
		}
		r.endedAt = time.Now()
	})
	r.event("released", r.snapshot().Message)
}

func (r *run) event(kind, message string) {
	r.Events.Publish(events.Event{Topic: events.TopicWorkload, Type: kind, Subject: r.ref.String(), Message: message})
}

func (r *run) state() State {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	return r.rec.State
}

func (r *run) failed() bool {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	return r.rec.Failed
}

// set moves the workload to another state; reason is why it goes down.
func (r *run) set(s State, reason error) error {
	return r.update(r.journal, func(rec *record) {
		if s == Stopping {
			rec.Failed, r.failure = rec.State == Starting || r.lost, reason
			rec.Message = reason.Error()
		}
		rec.State = s
	})
}

func (r *run) progress(s step, of subject) progress {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	return of.progress()[s.name]
}

// taken is how far a step of the whole workload has come.
func (r *run) taken(name string) progress {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	return r.rec.Steps[name]
}

func (r *run) mark(s step, of subject, p progress) error {
	return r.update(r.journal, func(*record) {
		if p == "" {
			delete(of.progress(), s.name)
		} else {
			of.progress()[s.name] = p
		}
	})
}
