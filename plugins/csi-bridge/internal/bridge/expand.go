package bridge

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

// Expand implements storage.Expander.
func (b *Bridge) Expand(ctx context.Context, d storage.Driver, req storage.ExpandRequest) (storage.ExpandResponse, error) {
	v := req.Volume
	resp, err := controllerDo(ctx, b, d, onVolume(driver.ExpandVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ControllerExpandVolumeResponse, error) {
			if !caps.Expand {
				return nil, lacks("EXPAND_VOLUME in its controller service")
			}
			vc, err := optionalCapability(v.Capability, features{singleNodeMultiWriter: caps.SingleNodeMultiWriter})
			if err != nil {
				return nil, err
			}
			return c.Controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
				VolumeId:         v.ExternalID,
				CapacityRange:    capacityRange(req.CapacityMin, req.CapacityMax),
				Secrets:          v.Secrets,
				VolumeCapability: vc,
			})
		})
	return storage.ExpandResponse{
		Capacity:              resp.GetCapacityBytes(),
		NodeExpansionRequired: resp.GetNodeExpansionRequired(),
	}, err
}

// ExpandNode implements storage.Expander.
func (b *Bridge) ExpandNode(ctx context.Context, d storage.Driver, req storage.ExpandNodeRequest) (int64, error) {
	v := req.Volume
	resp, err := nodeDo(ctx, b, d, onVolume(driver.ExpandNodeVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Node) (*csi.NodeExpandVolumeResponse, error) {
			if !caps.Expand {
				return nil, lacks("EXPAND_VOLUME in its node service")
			}
			vc, err := optionalCapability(v.Capability, nodeFeatures(caps))
			if err != nil {
				return nil, err
			}
			return c.Node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId:          v.ExternalID,
				VolumePath:        req.VolumePath,
				CapacityRange:     capacityRange(req.CapacityMin, req.CapacityMax),
				StagingTargetPath: req.StagingPath,
				VolumeCapability:  vc,
				Secrets:           v.Secrets,
			})
		})
	return resp.GetCapacityBytes(), err
}

// optionalCapability is capability where the spec does not require one: a
// volume that no one has claimed has no modes.
func optionalCapability(c storage.Capability, has features) (*csi.VolumeCapability, error) {
	if c.AccessMode == "" && c.AttachmentMode == "" {
		return nil, nil
	}
	return capability(c, has)
}
