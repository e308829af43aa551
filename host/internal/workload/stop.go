package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// Stop takes a workload down and returns when nothing is left of it. It continues when ctx ends;
// calling it again makes the next attempt at once. Stopping a workload that has ended is success.
func (m *Manager) Stop(ctx context.Context, ref claim.WorkloadRef, reason string, progress func(Step)) (Workload,
	error,
) {
	i, err := m.known.find(ref)
	if err != nil {
		return Workload{}, m.moved(ref, err)
	}
	if span := trace.SpanFromContext(ctx); span.SpanContext().IsSampled() {
		i.traceIn(span)
	}
	i.askStop(reason)
	undone := func(s Step) {
		if s.Undo && progress != nil {
			progress(s)
		}
	}
	return m.follow(ctx, i, undone, func(s State, _ bool) bool { return s.Ended() })
}

// Leave takes the services of a running workload out of Consul's catalog, and returns when their callers have had its
// shutdown_delay to see that. The next start registers them again. A workload that ends is success.
func (m *Manager) Leave(ctx context.Context, ref claim.WorkloadRef) error {
	i, err := m.known.find(ref)
	if err != nil {
		return err
	}
	switch state := i.snapshot().State; {
	case state.over():
		return nil
	case state != Running:
		return fmt.Errorf("%s: %w: it is %s", i, ErrConflict, state)
	}
	var asked uint64
	err = i.Save(func() {
		i.rec.Left = true
		asked = i.askRevision()
	})
	if err != nil {
		return fmt.Errorf("take the services of %s out of the catalog: %w", i, err)
	}
	var kept error
	w, err := m.follow(ctx, i, nil, func(s State, _ bool) (answered bool) {
		answered, kept = i.revised(asked)
		return answered || s.over()
	})
	if err = cmp.Or(err, kept); err != nil || w.State.over() {
		return err
	}
	return step.Sleep(ctx, i.delay())
}

// delay is what is left of the time that the callers of its services have to see that these have left the catalog.
func (i *instance) delay() (d time.Duration) {
	i.View(func() { d = i.rec.Spec.Delay() - time.Since(i.leftAt) })
	return d
}

// leave takes the services out of Consul's catalog before the process is asked to end, and gives their callers time to
// see that. Failed actions are retried when the process has ended. A node that was cut off has no time for it, and what
// has ended already needs none.
func (r *run) leave(ctx context.Context) {
	var p *process.Process
	r.View(func() { p = r.process })
	if len(r.services) == 0 || p == nil || isClosed(p.Done()) || r.isCutOff() || r.forced.Err() != nil {
		return
	}
	ctx, end := r.beginStep(ctx, leaveStep, subject{}, true)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.cutOff, cancel)() //nolint:contextcheck // the cut, besides ctx
	r.Update(func() { r.rec.Left = true })      // the journal gets it with the first undo
	err := r.revise(ctx)
	if err == nil {
		select {
		case <-time.After(r.delay()):
		case <-p.Done():
		case <-r.hurry:
		case <-ctx.Done():
		}
	}
	end(StepDone, err)
}

// Force lets the release of a workload unmount volumes itself that their drivers do not unmount, if nothing uses them:
// the operator, by, vouches that the drivers need not be waited for. An attempt in progress is given up for that. It
// asks for no stop. The force ends with the run.
func (m *Manager) Force(ref claim.WorkloadRef, by string) error {
	i, err := m.known.find(ref)
	if err != nil || i.snapshot().State.Ended() {
		return err
	}
	if err := i.Save(func() { i.rec.ForcedBy = by }); err != nil {
		return fmt.Errorf("force the release of %s: %w", i, err)
	}
	i.force()
	return nil
}

// errForced ends an attempt to release a workload: the next one is by force.
var errForced = errors.New("an operator forces the release")

// StopAll takes all workloads of this node down, side by side, and waits until they have ended, or
// until ctx ends.
func (m *Manager) StopAll(ctx context.Context, reason string) error {
	all := m.known.all()
	errs := make([]error, len(all))
	var stops sync.WaitGroup
	for n, i := range all {
		stops.Go(func() { _, errs[n] = m.Stop(ctx, i.ref, reason, nil) })
	}
	stops.Wait()
	return errors.Join(errs...)
}

// Drain takes all workloads of this node down one by one, the one that was started last first, and returns when all
// have ended and their claims are released, or when ctx ends. A workload whose release has to wait does not hold up the
// others. Until Undrain no workload can be started (claim.ErrIneligible); reason explains why. It may be repeated.
func (m *Manager) Drain(ctx context.Context, reason string) error {
	m.mu.Lock()
	m.draining = reason
	m.mu.Unlock()
	up := slices.DeleteFunc(m.known.all(), func(i *instance) bool { return i.snapshot().State.Ended() })
	slices.SortFunc(up, func(a, b *instance) int {
		return cmp.Or(b.rec.StartedAt.Compare(a.rec.StartedAt), cmp.Compare(key(a.ref), key(b.ref)))
	})
	for _, i := range up {
		i.askStop(reason)
		released := func(s State, waits bool) bool { return s.Ended() || s == Stopping && waits }
		if _, err := m.follow(ctx, i, nil, released); err != nil {
			return fmt.Errorf("stop %s: %w", i, err)
		}
	}
	for _, i := range up {
		w, err := m.follow(ctx, i, nil, func(s State, _ bool) bool { return s.Ended() })
		if err != nil {
			return fmt.Errorf("wait until %s is released: %w: %s", i, err, w.Waiting)
		}
	}
	return nil
}

// Undrain allows workloads to be started again.
func (m *Manager) Undrain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = ""
}

// errCutOff: the ledger is not called while a volume is mounted.
var errCutOff = errors.New("the node was cut off, and unmounts before it asks the ledger")

// LoseLease takes all workloads down that have claims on volumes, or may have, because this node
// may not use them any more. They end as failed, for the given reason. Their processes get little
// time to end by themselves, and the ledger is not waited for. It returns when nothing of their
// volumes is mounted, or with what is left when ctx ends; the rest of their release continues.
func (m *Manager) LoseLease(ctx context.Context, reason string) error {
	var stops sync.WaitGroup
	all := m.known.all()
	errs := make([]error, len(all))
	for n, i := range all {
		may := false // one that still waits for others has no claims, and gets none without a lease
		i.View(func() { may = i.volumes.HasClaims() && i.rec.Steps[claimStep] != "" })
		if !may {
			continue
		}
		i.lose(reason)
		i.cut()
		i.askStop(reason) // again: an undo that waits for its next attempt tries at once
		stops.Go(func() { errs[n] = i.awaitUnused(ctx) })
	}
	stops.Wait()
	return errors.Join(errs...)
}

// lose asks for a stop that ends the workload as failed.
func (i *instance) lose(reason string) {
	i.View(func() { i.lost = true })
	i.askStop(reason)
}

func (i *instance) isCutOff() bool { return i.cutOff.Err() != nil }

// inUse reports that a volume of the workload may be mounted.
func (i *instance) inUse() (is bool) {
	i.View(func() { is = i.volumes.InUse() })
	return is
}

// awaitUnused waits until none of the workload's volumes is mounted; the error names what keeps them when ctx ends
// first.
func (i *instance) awaitUnused(ctx context.Context) error {
	for {
		i.mu.Lock()
		using, changed, waiting := i.volumes.InUse(), i.changed.Wait(), i.rec.Waiting
		stopping := i.rec.State != Starting && i.rec.State != Running
		i.mu.Unlock()
		if stopping && !using {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s is not unmounted yet: %w: %s", i, context.Cause(ctx), waiting)
		}
	}
}
