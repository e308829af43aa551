package driver

import (
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
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

// stagePath is the resolved staging path. It must be a directory: the caller
// makes it.
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
func foreign(what, id string, m *mountinfo.Info) error {
	return status.Errorf(codes.FailedPrecondition,
		"%s: not volume %q is mounted there, but %s: unmount that first, or use another path", what, id, filesystem.Describe(m))
}
