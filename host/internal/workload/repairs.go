package workload

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// Repairs unmount what no workload of this node explains.
type Repairs struct {
	node    string
	dir     string // of all drivers' mounts
	ledger  cluster.Ledger
	drivers Drivers
	known   *table
	volumes *volumesteps.Steps
	limits  *limits
	log     hclog.Logger

	mu        sync.Mutex
	leftovers []string // mounts that no record explains and that cannot be unmounted yet
}

// unmountLeftovers unmounts what no workload of this node explains. A volume that a workload has claimed which this
// node does not know is left to the release of that claim.
func (r *Repairs) unmountLeftovers(ctx context.Context, claims []claim.Claim) ([]string, error) {
	left, err := r.volumes.UnmountLeftovers(ctx, func(ref claim.VolumeRef) bool {
		return slices.ContainsFunc(claims, func(c claim.Claim) bool { return c.Volume == ref && !r.known.owns(c.Workload) })
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leftovers = left
	return left, err
}

// keep unmounts from time to time what no workload explains, until ctx ends: a driver may mount long after
// everything was released (see volumesteps). It repeats what reconcile has done; changed is closed when the drivers
// have changed since that began.
func (r *Repairs) keep(ctx context.Context, reconciled, changed <-chan struct{}) {
	select {
	case <-reconciled:
	case <-ctx.Done():
		return
	}
	for {
		if len(r.Leftovers()) == 0 {
			changed = nil // what is left may wait for a driver
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(r.limits.repair):
		}
		changed = r.drivers.Changed() // before the repair: no change is missed
		if err := r.repair(ctx); err != nil {
			r.log.Debug("the mounts of this node cannot be compared with its workloads: this is retried", "error", err)
		}
	}
}

func (r *Repairs) repair(ctx context.Context) error {
	there, err := mounts.Below(r.dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(there, func(at mounts.Mount) bool { return !r.known.explained(at.Path) }) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, r.limits.ledger)
	defer cancel()
	on, err := cluster.OnNode(bounded, r.ledger, r.node)
	if err != nil {
		return err
	}
	_, err = r.unmountLeftovers(ctx, on.Claims)
	return err
}

// Leftovers are the mounts in the drivers' folders that no workload explains and that cannot be unmounted, as of the
// last repair.
func (r *Repairs) Leftovers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.leftovers)
}
