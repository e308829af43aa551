package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/cluster/claim"
)

// await waits until nothing is left of the workloads that this one comes after, wherever
// they ran: each has ended or is not known, and none of its claims stands. Those that it
// replaces are asked to stop. A stop of this one ends the waiting.
//
// The ledger knows who waits for whom, so that a cycle is refused. Once the wait was over
// it stays over: what comes later may have begun.
func (r *run) await(ctx context.Context) error {
	if r.taken(awaitStep) == done {
		return nil
	}
	if err := r.declare(ctx); err != nil {
		return err
	}
	err := r.update(r.journal, func(rec *record) {
		if rec.WaitsSince.IsZero() {
			rec.WaitsSince = time.Now().UTC()
		}
		r.waitsFor = rec.Spec.awaited()
		r.sayWaits("")
	})
	defer func() {
		_ = r.update(nil, func(rec *record) { r.waitsFor, rec.Waiting = nil, "" })
	}()
	if err != nil {
		return err
	}
	r.event("waiting", r.snapshot().Waiting)
	all, ctx := errgroup.WithContext(ctx)
	for _, ref := range r.rec.Spec.awaited() {
		all.Go(func() error { return r.awaitOne(ctx, ref, slices.Contains(r.rec.Spec.Replaces, ref)) })
	}
	return all.Wait()
}

// declare tells the ledger for whom the workload waits. A host that was away goes on
// waiting, however long the ledger is not to be reached.
func (r *run) declare(ctx context.Context) error {
	pause := r.pause()
	for {
		err := r.Ledger.AwaitWorkload(ctx, r.inLedger(), r.rec.Spec.awaited())
		if err == nil {
			return nil
		}
		err = fmt.Errorf("note in the ledger for whom %s waits: %w", r.instance, err)
		if refused(err) {
			return untouchedError{err}
		}
		if !r.resumed || pausing(ctx, pause.NextBackOff()) != nil {
			return err
		}
	}
}

// awaitOne waits until nothing is left of another workload, which is stopped where this
// one replaces it.
func (r *run) awaitOne(ctx context.Context, ref claim.WorkloadRef, replaced bool) error {
	waiting, over := context.WithCancel(ctx)
	defer over()
	var asking errgroup.Group
	if replaced {
		asking.Go(func() error { r.replace(waiting, ref); return nil })
	}
	pause := r.pause()
	for {
		err := r.Ledger.AwaitEnded(waiting, ref)
		if err == nil {
			over()
			_ = asking.Wait()
			_ = r.update(nil, func(*record) {
				r.waitsFor = slices.DeleteFunc(slices.Clone(r.waitsFor), func(w claim.WorkloadRef) bool { return w == ref })
				r.sayWaits("")
			})
			return nil
		}
		// The ledger is not to be reached for the moment; the wait goes on.
		if ctx.Err() == nil {
			_ = r.update(nil, func(*record) { r.sayWaits(err.Error()) })
		}
		if err := pausing(ctx, pause.NextBackOff()); err != nil {
			over()
			_ = asking.Wait()
			return err
		}
		_ = r.update(nil, func(*record) { r.sayWaits("") })
	}
}

// replace asks a workload to stop, on its node, until it was told.
func (r *run) replace(ctx context.Context, ref claim.WorkloadRef) {
	pause := r.pause()
	for {
		err := r.askOther(ctx, ref)
		if err == nil || ctx.Err() != nil {
			return
		}
		_ = r.update(nil, func(*record) {
			r.sayWaits(fmt.Sprintf("workload %q cannot be asked to stop yet: %v", ref, err))
		})
		if pausing(ctx, pause.NextBackOff()) != nil {
			return
		}
	}
}

// askOther asks a workload to stop once.
func (r *run) askOther(ctx context.Context, ref claim.WorkloadRef) error {
	other, err := r.Ledger.Workload(ctx, ref)
	if errors.Is(err, claim.ErrWorkloadNotFound) || err == nil && other.Status == claim.Ended {
		return nil
	}
	if err != nil {
		return err
	}
	reason := fmt.Sprintf("replaced by workload %q on node %q", r.ref, r.Node)
	if other.Node == r.Node {
		if i, err := r.find(ref); err == nil {
			i.askStop(reason)
		}
		return nil // one that is not known here is on its way out
	}
	if r.Nodes == nil {
		return fmt.Errorf("it is on node %q, and this node is alone: give it a tls block", other.Node)
	}
	return r.Nodes.StopWorkload(ctx, other.Node, ref, reason)
}

// sayWaits tells for whom the workload still waits, and what is wrong. i.mu is held.
func (i *instance) sayWaits(problem string) {
	i.rec.Waiting = ""
	if len(i.waitsFor) > 0 {
		i.rec.Waiting = fmt.Sprintf("it waits until nothing is left of %s", names(i.waitsFor))
		if problem != "" {
			i.rec.Waiting += ": " + problem
		}
	}
	i.noteStep(awaitStep, i.rec.Waiting)
}

func names(refs []claim.WorkloadRef) string {
	out := "workload "
	if len(refs) > 1 {
		out = "workloads "
	}
	for n, ref := range refs {
		if n > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%q", ref)
	}
	return out
}

// unawait ends the workload's record of its waiting, which sayEnded has tried.
func (r *run) unawait(context.Context) error {
	if r.unsaid != nil {
		return fmt.Errorf("the ledger still has that it waits: %w", r.unsaid)
	}
	return nil
}

// pausing waits for a while, or for the end of ctx, whose cause it returns.
func pausing(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
