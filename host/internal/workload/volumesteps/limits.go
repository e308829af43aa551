package volumesteps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrTooMany means that a driver has as many volumes on this node as it takes.
var ErrTooMany = errcode.ResourceExhausted.New("the driver takes no more volumes on this node")

// limits keeps each driver within its max_volumes_per_node (CSI spec, NodeGetInfo).
type limits struct {
	node    string
	ledger  cluster.Ledger
	records func(read func(w claim.WorkloadRef, all []*Record)) // Config.Records

	mu sync.Mutex // one check at a time
}

// onNode is a volume that is claimed on this node.
type onNode struct {
	ref   claim.VolumeRef
	first uint64 // index of its first claim here
	users []string
}

// check refuses a start with which a driver would get more volumes on this node than it takes. Volumes count from their
// claim until it is freed, those that were claimed first before the others: of several starts that want the last place,
// one gets it. Ephemeral volumes count from this check, in which they get the number of their workload's run as their
// Index: those that have it come first, those that do not last.
func (l *limits) check(ctx context.Context, set *Set, run uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fit(ctx, set); err != nil {
		return err
	}
	set.Update(func() {
		for _, v := range set.Volumes {
			if v.Request.Ephemeral() {
				v.Index = run
			}
		}
	})
	return nil
}

func (l *limits) fit(ctx context.Context, set *Set) error {
	var here []onNode // read once, for the first driver with a limit
	limits := map[string]int64{}
	for _, v := range set.Volumes {
		if n := v.driver.Fingerprint.Node; n != nil && n.MaxVolumes > 0 {
			limits[v.PluginID] = n.MaxVolumes
		}
	}
	for driver, limit := range limits {
		if here == nil {
			var err error
			if here, err = l.claimedHere(ctx); err != nil {
				return err
			}
		}
		placed, fresh := l.ephemeralOf(driver, set)
		if int64(len(placed)+len(here)+len(fresh)) <= limit {
			continue
		}
		of, err := l.ofDriver(ctx, set, here, driver)
		if err != nil {
			return err
		}
		if of = slices.Concat(placed, of, fresh); int64(len(of)) <= limit {
			continue
		}
		for _, v := range set.Volumes {
			if slices.ContainsFunc(of[limit:], func(o onNode) bool { return o.ref == v.VolumeRef }) {
				return tooMany(v, l.node, of[:limit])
			}
		}
	}
	return nil
}

func tooMany(v *Volume, node string, others []onNode) error {
	var have []string
	for _, o := range others {
		have = append(have, fmt.Sprintf("%q by %s", o.ref, strings.Join(o.users, " and ")))
	}
	return fmt.Errorf("volume %q: %w: driver %q takes %d on node %q (max_volumes_per_node) and has %s: stop one of these "+
		"workloads, or start this one on another node", v.VolumeRef, ErrTooMany, v.PluginID, len(others), node,
		strings.Join(have, ", "))
}

// claimedHere returns the volumes that are claimed on this node, those that were claimed first before the others.
func (l *limits) claimedHere(ctx context.Context) ([]onNode, error) {
	on, err := cluster.OnNode(ctx, l.ledger, l.node)
	if err != nil {
		return nil, fmt.Errorf("read the claims on node %q: %w", l.node, err)
	}
	out := []onNode{}
	for _, c := range on.Claims {
		n := slices.IndexFunc(out, func(o onNode) bool { return o.ref == c.Volume })
		if n < 0 {
			n = len(out)
			out = append(out, onNode{ref: c.Volume, first: c.Index})
		}
		out[n].first = min(out[n].first, c.Index)
		out[n].users = append(out[n].users, fmt.Sprintf("workload %q", c.Workload))
	}
	slices.SortFunc(out, func(a, b onNode) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.ref.String(), b.ref.String()))
	})
	return out, nil
}

// ofDriver returns the driver's volumes.
func (l *limits) ofDriver(ctx context.Context, set *Set, here []onNode, driver string) (of []onNode, err error) {
	for _, o := range here {
		n := slices.IndexFunc(set.Volumes, func(v *Volume) bool { return v.VolumeRef == o.ref })
		if n >= 0 {
			if set.Volumes[n].PluginID == driver {
				of = append(of, o)
			}
			continue
		}
		v, _, err := cluster.Ask(ctx, l.ledger, &command.QueryVolume{Ref: o.ref}, cluster.Blocking{})
		switch {
		case errors.Is(err, claim.ErrVolumeNotFound):
		case err != nil:
			return nil, fmt.Errorf("read volume %q, which is on node %q: %w", o.ref, l.node, err)
		case v.PluginID == driver:
			of = append(of, o)
		}
	}
	return of, nil
}
