package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/system/process"
)

// guard comes before a driver is asked to mount a volume: the node's lease must be valid, the
// workload's claims must be those that the ledger has now, and the fence must know of the
// mount. Whoever mounts asks for the lease again afterwards.
func (r *run) guard(ctx context.Context, v *volume, m fence.Mount) error {
	err := r.confirm(ctx)
	if err == nil {
		err = r.Lease.Protect(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("mount volume %q for %s: %w", v.Ref, r.instance, err)
	}
	return nil
}

// confirm compares the workload's claims with the ledger's, unless the node has had one lease
// ever since it was done last: then nobody can have let go of them.
func (r *run) confirm(ctx context.Context) error {
	term := r.Lease.Term()
	r.instance.mu.Lock()
	confirmed := r.term == term
	r.instance.mu.Unlock()
	if confirmed {
		return nil
	}
	standing, err := r.Ledger.ClaimsOf(ctx, r.ref)
	if err != nil {
		return fmt.Errorf("compare its claims with the ledger's: %w", err)
	}
	if lost := r.lostOf(r.Node, standing); len(lost) > 0 {
		return fmt.Errorf("%w: those on %v", errClaimsLost, lost)
	}
	return r.update(nil, func(*record) { r.term = term })
}

// lostOf are the volumes whose claims, as the workload took them on this node, are not among
// those that stand. The record of an older version does not tell which one it had: any will do.
func (i *instance) lostOf(node string, standing []claim.Claim) (lost []claim.VolumeRef) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, v := range i.volumes {
		ok := slices.ContainsFunc(standing, func(c claim.Claim) bool {
			return c.Workload == i.ref && c.Volume == v.Ref && c.Node == node && c.State == claim.Taken && (v.Index == 0 || v.Index == c.Index)
		})
		if !ok && !slices.Contains(lost, v.Ref) {
			lost = append(lost, v.Ref)
		}
	}
	return lost
}

func stagingMount(v *volumeRecord) fence.Mount { return fence.Mount{Path: v.Staging, Staging: true} }

func (r *run) targetMount(v *volumeRecord) fence.Mount {
	return fence.Mount{Path: v.Target, Workload: r.ref}
}

// guardAgain tells the fence of all that an earlier process of the host has mounted, until it
// knows, or ctx ends. It knew most of the time; a host that has only just become one of
// several has a new one.
func (r *run) guardAgain(ctx context.Context) {
	var all []fence.Mount
	for _, v := range r.volumes {
		all = append(all, r.targetMount(v.volumeRecord))
		if v.Steps["stage"] == done {
			all = append(all, stagingMount(v.volumeRecord))
		}
	}
	pause := r.pause()
	for said := false; ; said = true {
		err := r.Lease.Protect(ctx, all...)
		if err == nil {
			err = r.guardProcess(ctx)
		}
		if err == nil {
			return
		}
		if !said && ctx.Err() == nil {
			r.log.Warn("the fence does not know yet what the workload has mounted, it is told again", "workload", r.ref, "error", err)
		}
		if pausing(ctx, pause.NextBackOff()) != nil {
			return
		}
	}
}

func (r *run) guardProcess(ctx context.Context) error {
	r.instance.mu.Lock()
	p := r.process
	r.instance.mu.Unlock()
	if p == nil {
		return nil
	}
	return r.protectProcess(ctx, r.instance, p)
}

// protectProcess tells the fence of a workload's process, where it has volumes to use.
func (m *Manager) protectProcess(ctx context.Context, i *instance, p *process.Process) error {
	if len(i.volumes) == 0 {
		return nil
	}
	return m.Lease.ProtectProcess(ctx, guarded(i, p.Ref()))
}

// releaseProcess tells the fence that a workload's process has ended.
func (m *Manager) releaseProcess(ctx context.Context, i *instance, ref process.Ref) error {
	if len(i.volumes) == 0 {
		return nil
	}
	return m.Lease.ReleaseProcess(ctx, guarded(i, ref))
}

func guarded(i *instance, ref process.Ref) fence.Process {
	return fence.Process{PID: ref.PID, StartTime: ref.StartTime, Workload: i.ref}
}

// errClaimsLost: the ledger has let go of claims that the workload had.
var errClaimsLost = errors.New("the ledger has let go of its claims, and others may have the volumes")
