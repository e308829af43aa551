package controllers

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// Validate asks the driver whether the volume can be what its definition says
// (ValidateVolumeCapabilities). warnings are for the operator.
func (c *Controllers) Validate(ctx context.Context, v claim.Volume) (warnings []string, err error) {
	doing := fmt.Sprintf("validate volume %q (external id %q)", v.VolumeRef, v.ExternalID)
	err = c.call(ctx, doing, v.PluginID, anyController, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		asked, err := c.asked(ctx, v, storage.Capability{}, nil)
		if err != nil {
			return err
		}
		warnings, err = s.ValidateVolume(ctx, d.Ref(), storage.ValidateRequest{
			Volume: asked, Capabilities: capabilities(v), Parameters: v.Parameters,
		})
		return err
	})
	return warnings, err
}

// Create makes the volume at its driver, or finds the one that an earlier call
// made, and returns v with what the driver says of it: external id, capacity,
// context and topologies.
func (c *Controllers) Create(ctx context.Context, v claim.Volume) (claim.Volume, error) {
	doing := fmt.Sprintf("create volume %q", v.VolumeRef)
	err := c.call(ctx, doing, v.PluginID, provisioning, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		asked, err := c.asked(ctx, v, storage.Capability{}, nil)
		if err != nil {
			return err
		}
		cluster, err := c.cfg.ClusterID(ctx)
		if err != nil {
			return fmt.Errorf("read the cluster's id: %w", err)
		}
		made, err := s.Create(ctx, d.Ref(), storage.CreateRequest{
			Name:        driverName(cluster, "volume", v.Namespace, v.ID),
			CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax,
			Capabilities: capabilities(v),
			Parameters:   v.Parameters, Secrets: asked.Secrets,
			SnapshotID: v.SnapshotID, CloneID: v.CloneID,
			Topology: storage.TopologyRequirement{
				Requisite: topologies(v.Topology.Required), Preferred: topologies(v.Topology.Preferred),
			},
		})
		if err != nil {
			return err
		}
		if made.ExternalID == "" {
			return errors.New("the driver answered with success, but told no volume id")
		}
		v.ExternalID, v.Capacity, v.Context = made.ExternalID, made.Capacity, made.Context
		v.Topologies = claimTopologies(made.AccessibleTopology)
		return nil
	})
	return v, err
}

// Delete deletes the volume at its driver. It may be repeated. secrets, where
// given, replace the volume's.
func (c *Controllers) Delete(ctx context.Context, v claim.Volume, secrets map[string]string) error {
	doing := fmt.Sprintf("delete volume %q (external id %q)", v.VolumeRef, v.ExternalID)
	return c.call(ctx, doing, v.PluginID, provisioning, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		asked, err := c.asked(ctx, v, storage.Capability{}, secrets)
		if err != nil {
			return err
		}
		return s.Delete(ctx, d.Ref(), asked)
	})
}

// List lists a page of what the driver holds, registered or not.
func (c *Controllers) List(ctx context.Context, driverID string, page storage.Page) (list storage.ListResponse, err error) {
	err = c.call(ctx, "list the volumes", driverID, listing, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		list, err = s.List(ctx, d.Ref(), page)
		return err
	})
	return list, err
}

// Expand grows the volume at its driver to at least minBytes and at most maxBytes
// (0: no bound). inUse says that claims stand on it. It may be repeated.
func (c *Controllers) Expand(ctx context.Context, v claim.Volume, minBytes, maxBytes int64, inUse bool) (grown storage.ExpandResponse, err error) {
	doing := fmt.Sprintf("expand volume %q (external id %q)", v.VolumeRef, v.ExternalID)
	err = c.call(ctx, doing, v.PluginID, expanding, func(ctx context.Context, s storage.Client, d drivers.Driver) error {
		if ctl := d.Fingerprint.Controller; inUse && ctl != nil && ctl.Expand && !ctl.OnlineExpand {
			return ErrOffline
		}
		asked, err := c.asked(ctx, v, current(v), nil)
		if err != nil {
			return err
		}
		grown, err = s.Expand(ctx, d.Ref(), storage.ExpandRequest{Volume: asked, CapacityMin: minBytes, CapacityMax: maxBytes})
		return err
	})
	return grown, err
}
