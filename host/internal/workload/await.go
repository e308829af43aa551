package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/workload/step"
)

func (r *run) awaits() bool { return len(r.rec.Spec.Awaited()) > 0 }

// await waits until nothing is left of the workloads that this one is to come after, on whichever node they ran: each
// has ended or is not known, and it has no claims. Workloads that this one replaces are asked to stop. A stop of this
// one ends the wait.
//
// The ledger knows which workloads wait for which, so it refuses a cycle. The wait is not repeated
// once it is done: later actions may have begun.
func (r *run) await(ctx context.Context) error {
	if r.progress(awaitStep, subject{progress: r.rec.Steps}) == step.Done {
		return nil
	}
	// The ledger learns which workloads this one waits for. After a restart of the host that is retried for as long as the
	// ledger cannot be reached.
	for pause := r.m.limits.retry.Start(); ; {
		_, err := cluster.Apply(ctx, r.m.Ledger, command.Await(r.inLedger(), r.rec.Spec.Awaited()))
		if err == nil {
			break
		}
		err = fmt.Errorf("record in the ledger which workloads %s waits for: %w", r.instance, err)
		if step.Refused(err) {
			return step.NoEffect(err)
		}
		if !r.resumed || step.Sleep(ctx, pause.NextBackOff()) != nil {
			return err
		}
	}
	err := r.Save(func() {
		if r.rec.WaitsSince.IsZero() {
			r.rec.WaitsSince = time.Now().UTC()
		}
		if _, grant := r.caller.Credentials(); grant != nil {
			r.rec.Grant = grant
		}
		r.waitsFor = r.rec.Spec.Awaited()
		r.noteWait("")
	})
	defer r.Update(func() { r.waitsFor, r.rec.Waiting = nil, "" })
	if err != nil {
		return err
	}
	r.event("waiting", r.snapshot().Waiting)
	all, ctx := errgroup.WithContext(ctx)
	for _, ref := range r.rec.Spec.Awaited() {
		all.Go(func() error { return r.awaitOne(ctx, ref, slices.Contains(r.rec.Spec.Replaces, ref)) })
	}
	return all.Wait()
}

// awaitOne waits until nothing is left of another workload, and stops that one where this one
// replaces it.
func (r *run) awaitOne(ctx context.Context, ref claim.WorkloadRef, replaced bool) error {
	waiting, over := context.WithCancel(ctx)
	defer over()
	var asking errgroup.Group
	if replaced {
		asking.Go(func() error { r.replace(waiting, ref); return nil })
	}
	pause := r.m.limits.retry.Start()
	for {
		err := cluster.AwaitEnded(waiting, r.m.Ledger, ref)
		if err == nil {
			over()
			_ = asking.Wait()
			r.Update(func() {
				r.waitsFor = slices.DeleteFunc(slices.Clone(r.waitsFor), func(w claim.WorkloadRef) bool { return w == ref })
				r.noteWait("")
			})
			return nil
		}
		// The ledger cannot be reached; the wait continues.
		if ctx.Err() == nil {
			r.Update(func() { r.noteWait(err.Error()) })
		}
		if err := step.Sleep(ctx, pause.NextBackOff()); err != nil {
			over()
			_ = asking.Wait()
			return err
		}
		r.Update(func() { r.noteWait("") })
	}
}

// replace asks a workload to stop, on its node, and retries until the request has arrived.
func (r *run) replace(ctx context.Context, ref claim.WorkloadRef) {
	pause := r.m.limits.retry.Start()
	for {
		err := r.askOther(ctx, ref)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.Update(func() {
			r.noteWait(fmt.Sprintf("workload %q cannot be asked to stop yet: %v", ref, err))
		})
		if step.Sleep(ctx, pause.NextBackOff()) != nil {
			return
		}
	}
}

// askOther asks a workload to stop once.
func (r *run) askOther(ctx context.Context, ref claim.WorkloadRef) error {
	other, _, err := cluster.Ask(ctx, r.m.Ledger, &command.QueryWorkload{Ref: ref}, cluster.Blocking{})
	if errors.Is(err, claim.ErrWorkloadNotFound) || err == nil && other.Status == claim.Ended {
		return nil
	}
	if err != nil {
		return err
	}
	reason := fmt.Sprintf("replaced by workload %q on node %q", r.ref, r.m.Node)
	if other.Node == r.m.Node {
		if i, err := r.m.known.find(ref); err == nil {
			i.askStop(reason)
		}
		return nil // a workload that is not known here is being released
	}
	if r.m.Nodes == nil {
		return fmt.Errorf("it is on node %q, and this node is alone: give it a tls block", other.Node)
	}
	return r.m.Nodes.StopWorkload(ctx, other.Node, ref, reason)
}

// noteWait notes which workloads this one still waits for, and a problem with that. i.mu is held.
func (i *instance) noteWait(problem string) {
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

// endAwait ends the ledger's record of the wait, which reportEnd has tried.
func (r *run) endAwait(context.Context) error {
	if err := r.endReported(); err != nil {
		return fmt.Errorf("the ledger still has that it waits: %w", err)
	}
	return nil
}
