package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/internal/procfs"
)

// ownerGrace is how long an owner has to end what its workload's process has left in the namespace.
// It is enough for pannier workload run, which gives leftovers, the drain of proxies and their end 10 s each.
const ownerGrace = 35 * time.Second

// Running notes the process of a workload, which is released when that process ends. caller is the process that names
// it, without a PID if the workload has no owner: a stop kills the workload's process and all others in its mount
// namespace, so only the owner may name it, and no later process with the owner's PID. After an error the process must
// not begin: its volumes are not mounted, or not for it. Errors: ErrNotOwner; ErrConflict; process.ErrGone.
func (m *Manager) Running(ref claim.WorkloadRef, pid int, caller process.Ref) error {
	i, err := m.known.find(ref)
	if err != nil {
		return err
	}
	p, err := process.Observe(pid)
	if err != nil {
		return fmt.Errorf("observe the process of %s: %w", i, err)
	}
	if err = i.mayName(p.PID(), caller); err == nil {
		err = m.protectProcess(m.ctx, i, p)
	}
	if err != nil {
		p.Release()
		return fmt.Errorf("%s: its process may not begin: %w", i, err)
	}
	if err := i.ran(p); err != nil {
		return errors.Join(err, m.releaseProcess(m.ctx, i, p.Ref()))
	}
	checked := false
	i.eachRegistered(func(s *servicesteps.Service) { checked = checked || checksProcess(s.Registered) })
	if checked {
		m.Services.Changed() // the health of its services changes now
	}
	return nil
}

// ProxyEnded notes that the proxy of a service has ended; caller is as in Running.
func (m *Manager) ProxyEnded(ref claim.WorkloadRef, caller process.Ref, service string, restarts int,
	how string,
) error {
	i, err := m.known.find(ref)
	if err != nil {
		return err
	}
	if err := i.isOwner(caller); err != nil {
		return err
	}
	for _, s := range i.services {
		if s.Name == service {
			m.services.ProxyEnded(s, restarts, how)
		}
	}
	return nil
}

// isOwner returns an error if a process is not the workload's owner, or has ended.
func (i *instance) isOwner(caller process.Ref) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var owner process.Ref
	if i.rec.Owner != nil {
		owner = *i.rec.Owner
	}
	switch {
	case owner.PID != caller.PID || owner.StartTime != caller.StartTime:
		return fmt.Errorf("%w: its owner is process %d, the caller is process %d", ErrNotOwner, owner.PID, caller.PID)
	case owner.PID != 0 && !caller.Lives():
		return fmt.Errorf("%w: its owner, process %d, has ended", ErrNotOwner, owner.PID)
	}
	return nil
}

// mayName checks that caller is the workload's owner, and that it has started the process in the agent's mount
// namespace or in a new one.
func (i *instance) mayName(pid int, caller process.Ref) error {
	owner := caller.PID
	if err := i.isOwner(caller); err != nil || owner == 0 {
		return err
	}
	for p := pid; p != owner; {
		st, err := procfs.ReadStat(procfs.Dir(p))
		if err != nil || st.Parent == 0 {
			return fmt.Errorf("%w: process %d is not one of process %d", ErrNotOwner, pid, owner)
		}
		p = st.Parent
	}
	theirs, err := procfs.MountNamespace(procfs.Dir(pid))
	if err != nil {
		return err
	}
	owners, err := procfs.MountNamespace(procfs.Dir(owner))
	if err != nil {
		return err
	}
	ours, err := procfs.MountNamespace(procfs.Dir(os.Getpid()))
	if err == nil && theirs == owners && theirs != ours {
		err = fmt.Errorf("%w: process %d shares the mount namespace of process %d, with whatever else runs in it",
			ErrNotOwner, pid, owner)
	}
	return err
}

// findProcess opens a process that an earlier process of the host observed; nil: there is none.
func (r *run) findProcess(ctx context.Context, what string, ref *process.Ref) (*process.Process, error) {
	if ref == nil {
		return nil, nil
	}
	p, err := process.Find(ctx, *ref)
	if errors.Is(err, process.ErrGone) {
		if ref == r.rec.Owner && r.rec.MountedAt != "" {
			return nil, nil // awaitEnd looks whether a volume is mounted
		}
		r.askStop(fmt.Sprintf("its %s (pid %d) is gone", what, ref.PID))
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find its %s again: %w", what, err)
	}
	return p, nil
}

// awaitEnd returns why the workload has to end: it was asked to, or its owner or its process has
// ended.
func (r *run) awaitEnd(ctx context.Context) error {
	for {
		r.mu.Lock()
		owner, own, named := r.owner, r.process, r.named.Wait()
		r.mu.Unlock()
		if r.rec.MountedAt != "" && (owner == nil || isClosed(owner.Done())) {
			return r.awaitUnmounted(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.stop:
			return r.stopReason()
		case <-done(owner):
			if r.rec.MountedAt != "" {
				continue
			}
			return fmt.Errorf("its owner (pid %d) ended", owner.PID())
		case <-done(own):
			return fmt.Errorf("its process (pid %d) ended", own.PID())
		case <-named:
		}
	}
}

// done is closed when the process has ended; never without a process.
func done(p *process.Process) <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.Done()
}

// ran notes the workload's process and its private mount namespace. The instance releases p when it
// ends, or at once after an error.
func (i *instance) ran(p *process.Process) (err error) {
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
	ref := p.Ref()
	err = i.saveOr(func() error {
		switch {
		case i.rec.State != Running:
			return fmt.Errorf("%s is %s, not running: its process may not begin", i, i.rec.State)
		case i.left:
			return fmt.Errorf("note the process of %s: %w", i, ErrClosed)
		case i.process != nil && i.process.PID() == p.PID():
			return errSame
		case i.process != nil:
			return fmt.Errorf("%s: %w: it has process %d already", i, ErrConflict, i.process.PID())
		}
		i.rec.Process, i.rec.MountNS = &ref, ns
		failpoint.Here("process", "observed")
		return nil
	}, func(err error) {
		if err != nil {
			i.rec.Process, i.rec.MountNS = nil, nil
			return
		}
		failpoint.Here("process", "noted")
		if !i.left { // else the next host finds it by the record
			i.process, i.pin, noted = p, pin, true
			i.named.Notify()
		}
	})
	if errors.Is(err, errSame) {
		return nil
	}
	return err
}

// errSame: the process is known already.
var errSame = errors.New("the workload has this process")

// endProcesses ends what still uses the volumes: first the workload's process, by its kill_signal
// and then SIGKILL; then all others in its private mount namespace, where the volumes stay mounted after
// the host has unmounted them. A living owner may end those first in its own way.
func (r *run) endProcesses(ctx context.Context) error {
	r.mu.Lock()
	owner, p, ns := r.owner, r.process, r.rec.MountNS
	r.mu.Unlock()
	// Processes that may end by themselves get little time when the node is cut off.
	graceful, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	defer context.AfterFunc(r.cutOff, func() { //nolint:contextcheck // the cut, besides ctx
		select {
		case <-graceful.Done():
		case <-time.After(r.m.limits.cutGrace):
			cut(context.DeadlineExceeded)
		}
	})()
	if p != nil {
		sig, timeout := unix.SIGTERM, time.Duration(0)
		if exec := r.rec.Spec.Exec; exec != nil {
			sig, timeout = process.Ending(exec.KillSignal, exec.KillTimeout)
		}
		err := endProcess(graceful, p, sig, cmp.Or(timeout, r.m.limits.stopGrace))
		if errors.Is(err, context.DeadlineExceeded) {
			err = endProcess(ctx, p, unix.SIGKILL, r.m.limits.killGrace)
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
	ctx, cancel := context.WithTimeout(ctx, r.m.limits.killGrace)
	defer cancel()
	if err := ns.empty(ctx, r.m.limits.killGrace); err != nil {
		return fmt.Errorf("end the processes of %s: %w", r.instance, err)
	}
	r.View(func() {
		r.unpin() // an open namespace keeps its mounts
		r.rec.MountNS = nil
	})
	return nil
}

// awaitOwner waits until an owner has emptied the namespace or has ended, or for ownerGrace.
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

// endProcess sends a signal and waits until the process is gone; DeadlineExceeded: it is not.
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

// releaseProcesses stops observing the workload's processes; they live on.
func (i *instance) releaseProcesses() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.left = true
	for _, p := range []*process.Process{i.owner, i.process} {
		if p != nil {
			p.Release()
		}
	}
	i.unpin()
}

// unpin closes the mount namespace. i.mu is held.
func (i *instance) unpin() {
	if i.pin != nil {
		_ = i.pin.Close()
		i.pin = nil
	}
}

// guardAgain tells the fence of the mounts and the process that an earlier process of the host has
// left, and retries until ctx ends.
func (r *run) guardAgain(ctx context.Context) {
	pause := r.m.limits.retry.Start()
	for logged := false; ; logged = true {
		err := r.m.volumes.Protect(ctx, r.volumes)
		if err == nil {
			var p *process.Process
			r.View(func() { p = r.process })
			if p != nil {
				err = r.m.protectProcess(ctx, r.instance, p)
			}
		}
		if err == nil {
			return
		}
		if !logged && ctx.Err() == nil {
			r.m.log.Warn("the fence does not know yet what the workload has mounted; this is retried", "workload", r.ref,
				"error", err)
		}
		if step.Sleep(ctx, pause.NextBackOff()) != nil {
			return
		}
	}
}

// protectProcess tells the fence of the process of a workload with claims.
func (m *Manager) protectProcess(ctx context.Context, i *instance, p *process.Process) error {
	if !i.volumes.HasClaims() {
		return nil
	}
	return m.Lease.ProtectProcess(ctx, guarded(i, p.Ref()))
}

// releaseProcess tells the fence that the process has ended.
func (m *Manager) releaseProcess(ctx context.Context, i *instance, ref process.Ref) error {
	if !i.volumes.HasClaims() {
		return nil
	}
	return m.Lease.ReleaseProcess(ctx, guarded(i, ref))
}

func guarded(i *instance, ref process.Ref) fence.Process {
	return fence.Process{PID: ref.PID, StartTime: ref.StartTime, Workload: i.ref}
}
