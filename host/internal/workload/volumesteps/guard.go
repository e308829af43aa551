package volumesteps

import (
	"context"
	"fmt"
	"slices"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/fencing/fence"
)

// guard comes before a driver is asked to mount a volume: the node's lease must be valid, the
// workload's claims must be those that the ledger has now, and the fence must know the mount.
// After the mount the caller checks the lease again.
func (s *Steps) guard(ctx context.Context, v *Volume, m fence.Mount) error {
	err := s.Claims.confirm(ctx, v.set)
	if err == nil {
		err = s.Lease.Protect(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("mount volume %q for workload %q: %w", v.VolumeRef, v.workload, err)
	}
	return nil
}

// confirm compares the workload's claims with the ledger's, unless the node has had one lease
// ever since the last comparison: then they cannot have been released.
func (c *Claims) confirm(ctx context.Context, set *Set) error {
	epoch, confirmed := c.lease.Epoch(), false
	set.View(func() { confirmed = set.epoch == epoch })
	if confirmed {
		return nil
	}
	standing, _, err := cluster.Ask(ctx, c.ledger, &command.QueryClaims{Workload: set.Ref()}, cluster.Blocking{})
	if err != nil {
		return fmt.Errorf("compare its claims with the ledger's: %w", err)
	}
	if lost := set.Lost(c.node, standing); len(lost) > 0 {
		return fmt.Errorf("%w: those on %v", ErrClaimsLost, lost)
	}
	set.Update(func() { set.epoch = epoch })
	return nil
}

// Lost returns the volumes whose claims, as the workload took them on this node, are not among
// those of the ledger.
func (set *Set) Lost(node string, standing []claim.Claim) (lost []claim.VolumeRef) {
	set.View(func() {
		for _, v := range set.Volumes {
			ok := v.Request.Ephemeral() || slices.ContainsFunc(standing, func(c claim.Claim) bool {
				return c.Workload == v.workload && c.Volume == v.VolumeRef && c.Node == node && c.State == claim.Taken &&
					v.Index == c.Index
			})
			if !ok && !slices.Contains(lost, v.VolumeRef) {
				lost = append(lost, v.VolumeRef)
			}
		}
	})
	return lost
}

// InUse reports whether any volume of the workload may be mounted. The workload's lock is held.
func (set *Set) InUse() bool {
	return slices.ContainsFunc(set.Volumes, func(v *Volume) bool { return v.MayBeMounted() })
}

func (v *Volume) stagingMount() fence.Mount { return fence.Mount{Path: v.Staging, Staging: true} }

func (v *Volume) targetMount() fence.Mount {
	return fence.Mount{Path: v.Target, Was: identity(v.Mounted), Workload: v.workload}
}

// Protect tells the fence of all that an earlier process of the host has mounted. Most often the
// fence knows it; a host that has just become one of several has a new fence.
func (s *Steps) Protect(ctx context.Context, set *Set) error {
	var all []fence.Mount
	for _, v := range set.Volumes {
		all = append(all, v.targetMount())
		if v.Staged() {
			all = append(all, v.stagingMount())
		}
	}
	return s.Lease.Protect(ctx, all...)
}
