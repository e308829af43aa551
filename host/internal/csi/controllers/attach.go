package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// defaultAttachWait is how long an attach, which is a step of a workload's start, waits
// for a driver that is not healthy, as one that is being restarted.
const defaultAttachWait = 30 * time.Second

// Attach makes a volume available on a node and returns the driver's publish
// context (CSI spec, ControllerPublishVolume). Where the driver has no controller
// service with PUBLISH_UNPUBLISH_VOLUME there is nothing to do. It may be repeated.
func (c *Controllers) Attach(ctx context.Context, v claim.Volume, capability storage.Capability, node string) (publishContext map[string]string, err error) {
	return c.AttachIf(ctx, v, capability, node, func(context.Context) error { return nil })
}

// AttachIf is Attach for a caller on another node, who may have given up: claimed says
// whether it still holds its claim. It is asked while no detach of the volume from the
// node can come in between.
func (c *Controllers) AttachIf(ctx context.Context, v claim.Volume, capability storage.Capability, node string, claimed func(ctx context.Context) error) (publishContext map[string]string, err error) {
	doing := fmt.Sprintf("attach volume %q to node %q", v.VolumeRef, node)
	unlock, err := c.lockAttachment(ctx, doing, v.VolumeRef, node)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := claimed(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if on, err := c.reach.on(v.PluginID, node); err == nil {
		if err := v.CheckReachable(node, on.Topology); err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
	}
	err = c.callWithin(ctx, c.attachWait, doing, v.PluginID, attaching, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		id, err := c.driverNodeID(v.PluginID, node)
		if err != nil {
			return err
		}
		asked, err := c.asked(ctx, v, capability, nil)
		if err != nil {
			return err
		}
		publishContext, err = s.Attach(ctx, d.Ref(), storage.AttachRequest{
			Volume: asked, NodeID: id, ReadOnly: readerOnly(capability.AccessMode),
		})
		return err
	})
	return publishContext, err
}

// NeedsDetach says whether the driver's volumes are attached to nodes at all. It
// fails where that cannot be told: for a driver that is not known, or that has not
// answered yet.
func (c *Controllers) NeedsDetach(driverID string) (bool, error) {
	return c.reach.attaches(driverID)
}

// Detach reverses Attach when the last claim of the volume on the node goes
// (ControllerUnpublishVolume). stillNeeded tells whether another claim stands
// there; it is asked while no attach of the volume to the node can come in
// between. driverNodeID is the driver's own id of the node, from the claim. It
// may be repeated; called says whether the driver was asked.
func (c *Controllers) Detach(ctx context.Context, v claim.Volume, node, driverNodeID string, stillNeeded func(ctx context.Context) (bool, error)) (called bool, err error) {
	doing := fmt.Sprintf("detach volume %q from node %q", v.VolumeRef, node)
	unlock, err := c.lockAttachment(ctx, doing, v.VolumeRef, node)
	if err != nil {
		return false, err
	}
	defer unlock()
	needed, err := stillNeeded(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: look for other claims on it there: %w", doing, err)
	}
	if needed {
		return false, nil
	}
	if needs, err := c.NeedsDetach(v.PluginID); err != nil || !needs {
		return false, err
	}
	err = c.callWithin(ctx, 0, doing, v.PluginID, attaching, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		id := driverNodeID
		if id == "" {
			if id, err = c.driverNodeID(v.PluginID, node); err != nil {
				return err
			}
		}
		asked, err := c.asked(ctx, v, storage.Capability{}, nil)
		if err != nil {
			return err
		}
		called = true
		return s.Detach(ctx, d.Ref(), asked, id)
	})
	return called, err
}

func (c *Controllers) lockAttachment(ctx context.Context, doing string, ref claim.VolumeRef, node string) (unlock func(), err error) {
	unlock, err = c.attachments.Lock(ctx, attachment{ref, node})
	if err != nil {
		return nil, fmt.Errorf("%s: wait for another call on it there: %w", doing, err)
	}
	return unlock, nil
}

func readerOnly(m storage.AccessMode) bool {
	return m == storage.SingleNodeReaderOnly || m == storage.MultiNodeReaderOnly
}

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
