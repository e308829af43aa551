package driver

import (
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/csi-local/internal/filesystem"
)

// NodeGetCapabilities lists what the node service can do.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// NodeGetInfo returns the node id that the driver was started with.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.nodeID}, nil
}

// NodeExpandVolume shows a volume's users the size that its image already has:
// on the device, and in the file system on it.
func (d *Driver) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	switch {
	case req.GetVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	case req.GetVolumePath() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	end, err := d.flight.begin("NodeExpandVolume", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := d.presentVolume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	fs, _, err := d.locate(v.ID, req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	r := req.GetCapacityRange()
	if r.GetRequiredBytes() > v.Capacity || (r.GetLimitBytes() > 0 && r.GetLimitBytes() < v.Capacity) {
		return nil, status.Errorf(codes.OutOfRange,
			"volume %q has %d bytes and capacity_range is %d to %d: call ControllerExpandVolume first",
			v.ID, v.Capacity, r.GetRequiredBytes(), r.GetLimitBytes())
	}
	u, err := d.usage(v.ID)
	if err != nil {
		return nil, failed(err)
	}
	for _, dev := range u.devices {
		if err := dev.Resize(); err != nil {
			return nil, failed(err)
		}
	}
	if fs != nil {
		if err := d.growMounted(ctx, u, v.Capacity); err != nil {
			return nil, err
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, nil
}

// growMounted grows the file system through a mount that may write to it.
func (d *Driver) growMounted(ctx context.Context, u usage, size int64) error {
	for _, m := range u.mounts {
		if u.table.At(m.Mountpoint) == m && !filesystem.IsReadOnly(m) {
			return failed(d.programs.Grow(ctx, m, size))
		}
	}
	return status.Errorf(codes.FailedPrecondition,
		"the file system is mounted read-only (%s): stage the volume in a mode with a writer", u)
}

// stagePath is the resolved staging path, which must be a directory that the
// caller has made.
func stagePath(path string) (string, error) {
	resolved, err := filesystem.Resolve(path)
	if err != nil {
		return "", status.Errorf(codes.InvalidArgument, "staging_target_path: %v", err)
	}
	info, err := os.Lstat(resolved)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", status.Errorf(codes.InvalidArgument, "staging_target_path %q does not exist: the caller makes it", path)
	case err != nil:
		return "", failed(err)
	case !info.IsDir():
		return "", status.Errorf(codes.InvalidArgument, "staging_target_path %q is not a directory", path)
	}
	return resolved, nil
}

// foreign says that something else is mounted where the volume was expected.
func foreign(what, id, description string) error {
	return status.Errorf(codes.FailedPrecondition,
		"%s: volume %q is not what is mounted there, but %s: unmount that first, or use another path", what, id, description)
}
