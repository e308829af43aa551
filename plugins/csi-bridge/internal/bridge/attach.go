package bridge

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

const publishUnpublish = "PUBLISH_UNPUBLISH_VOLUME"

// Attach implements storage.Storage. ReadOnly is passed on only to a driver
// with PUBLISH_READONLY, as the spec demands; the node's publish has it anyway.
func (b *Bridge) Attach(ctx context.Context, d storage.Driver, req storage.AttachRequest) (map[string]string, error) {
	v := req.Volume
	resp, err := controllerDo(ctx, b, d, onVolume(driver.AttachVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ControllerPublishVolumeResponse, error) {
			if !caps.AttachDetach {
				return nil, lacks(publishUnpublish)
			}
			vc, err := capability(v.Capability, features{singleNodeMultiWriter: caps.SingleNodeMultiWriter})
			if err != nil {
				return nil, err
			}
			return c.Controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
				VolumeId:         v.ExternalID,
				NodeId:           req.NodeID,
				VolumeCapability: vc,
				Readonly:         req.ReadOnly && caps.AttachReadOnly,
				Secrets:          v.Secrets,
				VolumeContext:    v.Context,
			})
		})
	return resp.GetPublishContext(), err
}

// Detach implements storage.Storage. A volume or a node that the driver does
// not know is not attached.
func (b *Bridge) Detach(ctx context.Context, d storage.Driver, v storage.Volume, nodeID string) error {
	_, err := controllerDo(ctx, b, d, onVolume(driver.DetachVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ControllerUnpublishVolumeResponse, error) {
			if !caps.AttachDetach {
				return nil, lacks(publishUnpublish)
			}
			return c.Controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
				VolumeId: v.ExternalID,
				NodeId:   nodeID,
				Secrets:  v.Secrets,
			})
		})
	return absentIsDone(err)
}
