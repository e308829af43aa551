package bridge

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

const publishUnpublish = "PUBLISH_UNPUBLISH_VOLUME"

// Attach implements storage.Storage. As the spec demands, ReadOnly is passed on only to a driver with
// PUBLISH_READONLY; the node's publish always passes it.
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

// Detach implements storage.Storage. It succeeds if the driver does not know the volume or the node.
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

const stageUnstage = "STAGE_UNSTAGE_VOLUME"

func nodeFeatures(caps *driver.Node) features {
	return features{singleNodeMultiWriter: caps.SingleNodeMultiWriter, mountGroup: caps.VolumeMountGroup}
}

// Stage implements storage.Storage.
func (b *Bridge) Stage(ctx context.Context, d storage.Driver, req storage.StageRequest) error {
	v := req.Volume
	_, err := nodeDo(ctx, b, d, onVolume(driver.StageVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Node) (*csi.NodeStageVolumeResponse, error) {
			if !caps.StageUnstage {
				return nil, lacks(stageUnstage)
			}
			vc, err := capability(v.Capability, nodeFeatures(caps))
			if err != nil {
				return nil, err
			}
			return c.Node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
				VolumeId:          v.ExternalID,
				PublishContext:    req.PublishContext,
				StagingTargetPath: req.StagingPath,
				VolumeCapability:  vc,
				Secrets:           v.Secrets,
				VolumeContext:     v.Context,
			})
		})
	return err
}

// Unstage implements storage.Storage.
func (b *Bridge) Unstage(ctx context.Context, d storage.Driver, v storage.Volume, stagingPath string) error {
	_, err := nodeDo(ctx, b, d, onVolume(driver.UnstageVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Node) (*csi.NodeUnstageVolumeResponse, error) {
			if !caps.StageUnstage {
				return nil, lacks(stageUnstage)
			}
			return c.Node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
				VolumeId:          v.ExternalID,
				StagingTargetPath: stagingPath,
			})
		})
	return absentIsDone(err)
}

// Publish implements storage.Storage.
func (b *Bridge) Publish(ctx context.Context, d storage.Driver, req storage.PublishRequest) error {
	v := req.Volume
	_, err := nodeDo(ctx, b, d, onVolume(driver.PublishVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Node) (*csi.NodePublishVolumeResponse, error) {
			vc, err := capability(v.Capability, nodeFeatures(caps))
			if err != nil {
				return nil, err
			}
			return c.Node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
				VolumeId:          v.ExternalID,
				PublishContext:    req.PublishContext,
				StagingTargetPath: req.StagingPath,
				TargetPath:        req.TargetPath,
				VolumeCapability:  vc,
				Readonly:          req.ReadOnly,
				Secrets:           v.Secrets,
				VolumeContext:     v.Context,
			})
		})
	return err
}

// Unpublish implements storage.Storage. It checks no capability, because every node service can unpublish.
func (b *Bridge) Unpublish(ctx context.Context, d storage.Driver, v storage.Volume, targetPath string) error {
	_, err := do(ctx, b, d, onVolume(driver.UnpublishVolume, v),
		func(ctx context.Context, c *driver.Conn) (*csi.NodeUnpublishVolumeResponse, error) {
			return c.Node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
				VolumeId:   v.ExternalID,
				TargetPath: targetPath,
			})
		})
	return absentIsDone(err)
}
