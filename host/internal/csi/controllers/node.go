package controllers

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// Place is where a volume is mounted on this node, as the host sees the paths.
type Place struct {
	Target  string
	Staging string // empty where the driver does not stage
}

func (p Place) translate(d drivers.Driver) (target, staging string) {
	if p.Staging != "" {
		staging = d.Translate(p.Staging)
	}
	return d.Translate(p.Target), staging
}

// ExpandNode grows what is mounted at a place to the volume's new size
// (NodeExpandVolume). It may be repeated.
func (c *Controllers) ExpandNode(ctx context.Context, v claim.Volume, at Place, minBytes, maxBytes int64) error {
	doing := fmt.Sprintf("expand volume %q, mounted at %s,", v.VolumeRef, at.Target)
	return c.callHere(ctx, doing, v.PluginID, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		asked, err := c.asked(ctx, v, current(v), nil)
		if err != nil {
			return err
		}
		target, staging := at.translate(d)
		_, err = s.ExpandNode(ctx, d.Ref(), storage.ExpandNodeRequest{
			Volume: asked, CapacityMin: minBytes, CapacityMax: maxBytes, VolumePath: target, StagingPath: staging,
		})
		return err
	})
}

// Stats reads usage and condition of what is mounted at a place
// (NodeGetVolumeStats).
func (c *Controllers) Stats(ctx context.Context, v claim.Volume, at Place) (stats storage.Stats, err error) {
	doing := fmt.Sprintf("read the usage of volume %q at %s", v.VolumeRef, at.Target)
	err = c.callHere(ctx, doing, v.PluginID, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		target, staging := at.translate(d)
		// NodeGetVolumeStats takes no secrets.
		volume := storage.Volume{Name: v.String(), ExternalID: v.ExternalID, Context: v.Context, Capability: current(v)}
		stats, err = s.VolumeStats(ctx, d.Ref(), storage.StatsRequest{Volume: volume, VolumePath: target, StagingPath: staging})
		return err
	})
	return stats, err
}
