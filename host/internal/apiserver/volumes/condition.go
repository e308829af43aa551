package volumes

import (
	"context"
	"sync"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// seenVolume is what a driver says of a volume.
type seenVolume struct {
	controller *storage.Condition // nil: it says nothing
	nodes      []string           // that have mounted it; this one first
	stats      []*storage.Stats   // of each node; nil: it did not answer
}

// look asks the driver's controller about a volume, and each node that has mounted it.
func (h *Handler) look(ctx context.Context, v claim.Volume, claims []claim.Claim) seenVolume {
	ctx, cancel := context.WithTimeout(ctx, call.StatsTimeout)
	defer cancel()
	var seen seenVolume
	places := h.Workloads.Placements(v.VolumeRef)
	if len(places) > 0 {
		seen.nodes = append(seen.nodes, h.Name)
	}
	seen.nodes = append(seen.nodes, h.elsewhere(claims)...)
	seen.stats = make([]*storage.Stats, len(seen.nodes))
	var asking sync.WaitGroup
	asking.Go(func() {
		if condition, err := h.Controllers.Condition(ctx, v); err == nil {
			seen.controller = condition
		}
	})
	for n, node := range seen.nodes {
		asking.Go(func() {
			var stats storage.Stats
			var err error
			if node == h.Name {
				stats, err = h.Controllers.Stats(ctx, v, places[0].Place)
			} else {
				stats, err = h.Nodes.VolumeStats(ctx, node, v)
			}
			if err == nil {
				seen.stats[n] = &stats
			}
		})
	}
	asking.Wait()
	return seen
}

// usage is that of the first node that answered; nil: none did.
func (v seenVolume) usage() *hostv1.VolumeUsage {
	for _, stats := range v.stats {
		if stats == nil {
			continue
		}
		shown := &hostv1.VolumeUsage{}
		for _, u := range stats.Usage {
			switch u.Unit {
			case storage.Bytes:
				shown.BytesTotal, shown.BytesUsed, shown.BytesAvailable = u.Total, u.Used, u.Available
			case storage.Inodes:
				shown.InodesTotal, shown.InodesUsed, shown.InodesAvailable = u.Total, u.Used, u.Available
			}
		}
		if stats.Condition != nil {
			shown.Abnormal, shown.Condition = stats.Condition.Abnormal, stats.Condition.Message
		}
		return shown
	}
	return nil
}

func (v seenVolume) conditions() (all []*hostv1.VolumeCondition) {
	add := func(node string, c *storage.Condition) {
		if c != nil {
			all = append(all, &hostv1.VolumeCondition{Node: node, Abnormal: c.Abnormal, Message: c.Message})
		}
	}
	add("", v.controller)
	for n, stats := range v.stats {
		if stats != nil {
			add(v.nodes[n], stats.Condition)
		}
	}
	return all
}
