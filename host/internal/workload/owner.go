package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
)

// ownerGrace is how long an owner has to end what its workload's process has left in
// the namespace. It is enough for pannier workload run, which gives leftovers and then
// sidecars 10 s each.
const ownerGrace = 25 * time.Second

// observe opens the processes whose end releases the workload. One that is gone
// already asks for the stop at once.
func (r *run) observe(ctx context.Context) (err error) {
	if r.owner, err = r.again(ctx, "owner", r.rec.Owner); err != nil {
		return err
	}
	if r.process, err = r.again(ctx, "process", r.rec.Process); err != nil {
		return err
	}
	return r.observeNamespace(ctx)
}

// again finds a process that an earlier process of the host observed; nil where
// there is none.
func (r *run) again(ctx context.Context, what string, ref *process.Ref) (*process.Process, error) {
	if ref == nil {
		return nil, nil
	}
	p, err := process.Find(ctx, *ref)
	if errors.Is(err, process.ErrGone) {
		r.askStop(fmt.Sprintf("its %s (pid %d) is gone", what, ref.PID))
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find its %s again: %w", what, err)
	}
	return p, nil
}

// awaitEnd returns why the workload has to go: it was asked to, or its owner or
// its process has ended.
func (r *run) awaitEnd(ctx context.Context) error {
	for {
		r.instance.mu.Lock()
		owner, own, changed := r.owner, r.process, r.changed.Wait()
		r.instance.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.stop:
			return r.stopReason()
		case <-ended(owner):
			return fmt.Errorf("its owner (pid %d) ended", owner.PID())
		case <-ended(own):
			return fmt.Errorf("its process (pid %d) ended", own.PID())
		case <-changed:
		}
	}
}

func ended(p *process.Process) <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.Done()
}

// ran notes which process is the workload, and its private mount namespace. The
// instance lets go of p in the end, or at once where it is not noted.
func (i *instance) ran(j *journal.Journal, p *process.Process) (err error) {
	pin, ns, err := private(context.Background(), p)
	noted := false
	defer func() {
		if !noted {
			p.Release()
			_ = pin.Close() // nil where there is none
		}
	}()
	if err != nil {
		return fmt.Errorf("note the process of %s: %w", i, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.rec.State != Running:
		return fmt.Errorf("%s is %s, not running: its process may not begin", i, i.rec.State)
	case i.left:
		return fmt.Errorf("note the process of %s: %w", i, ErrClosed)
	case i.process != nil && i.process.PID() == p.PID():
		return nil
	case i.process != nil:
		return fmt.Errorf("%s: %w: it has process %d already", i, ErrConflict, i.process.PID())
	}
	ref := p.Ref()
	i.rec.Process, i.rec.MountNS = &ref, ns
	failpoint.Here("process", "observed")
	if err := i.write(j); err != nil {
		i.rec.Process, i.rec.MountNS = nil, nil
		return err
	}
	failpoint.Here("process", "noted")
	i.process, i.pin, noted = p, pin, true
	i.changed.Notify()
	return nil
}

// endProcesses ends what still uses the volumes: the workload's process, asked
// first, then whatever else lives in its private mount namespace, where the
// volumes stay mounted however often they are unmounted on the host. An owner that
// lives may end that first in its own way.
func (r *run) endProcesses(ctx context.Context) error {
	r.instance.mu.Lock()
	owner, p, ns := r.owner, r.process, r.rec.MountNS
	r.instance.mu.Unlock()
	graceful, end := r.graceful(ctx)
	defer end()
	if p != nil {
		err := endProcess(graceful, p, unix.SIGTERM, r.limits.stopGrace)
		if errors.Is(err, context.DeadlineExceeded) {
			err = endProcess(ctx, p, unix.SIGKILL, r.limits.killGrace)
		}
		if err != nil {
			return fmt.Errorf("end process %d of %s: %w", p.PID(), r.instance, err)
		}
	}
	if ns == nil {
		return nil
	}
	if owner != nil {
		awaitOwner(graceful, owner, *ns)
	}
	ctx, cancel := context.WithTimeout(ctx, r.limits.killGrace)
	defer cancel()
	if err := r.emptyNamespace(ctx, *ns); err != nil {
		return err
	}
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	r.unpin() // it keeps the mounts in it
	r.rec.MountNS = nil
	return nil
}

// awaitOwner waits until an owner has emptied the namespace, has ended, or has had the
// time for it.
func awaitOwner(ctx context.Context, owner *process.Process, ns namespace) {
	ctx, cancel := context.WithTimeout(ctx, ownerGrace)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(process.InMountNamespace(ns.Inode)) > 0 {
		select {
		case <-tick.C:
		case <-owner.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// endProcess sends a signal and waits until the process is gone, DeadlineExceeded
// if it is not by then.
func endProcess(ctx context.Context, p *process.Process, sig unix.Signal, grace time.Duration) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
