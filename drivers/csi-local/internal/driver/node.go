package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
)

// NodeGetCapabilities lists the node service's capabilities.
func (d node) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// NodeGetInfo returns the node id that the driver was started with, which is its topology too.
func (d node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.nodeID, AccessibleTopology: d.topology()}, nil
}

// stagePath resolves the staging path. It must be a directory, which the caller has made.
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

// foreign is the error if something else is mounted where the volume was expected.
func foreign(what, id string, m *mountinfo.Info) error {
	return status.Errorf(codes.FailedPrecondition,
		"%s: not volume %q is mounted there, but %s: unmount that first, or use another path", what, id, filesystem.Describe(
			m))
}

// bindNode attaches the volume's image to a device that stays until detachUnused, and binds the device to the file
// path, which it makes. It does nothing if that is done already; otherwise it calls check first.
func (d node) bindNode(ctx context.Context, u usage, id string, readOnly bool, path string,
	check func(usage) error,
) error {
	switch at := u.at(path); {
	case at.other != nil:
		return foreign("the path of the device", id, at.other)
	case at.fs != nil:
		return status.Errorf(codes.AlreadyExists, "volume %q is mounted at %s as a file system: take it away first", id, path)
	case at.node != nil && at.node.device.ReadOnly != readOnly:
		return status.Errorf(codes.AlreadyExists,
			"volume %q is at %s already, but read-only is %t there: take it away first", id, path, !readOnly)
	case at.node != nil:
		return nil
	}
	if err := check(u); err != nil {
		return err
	}
	if err := d.bindNewNode(ctx, id, readOnly, path); err != nil {
		now, usageErr := d.usage(id)
		return errors.Join(err, usageErr, d.detachUnused(id, now))
	}
	return nil
}

func (d node) bindNewNode(ctx context.Context, id string, readOnly bool, path string) error {
	v, err := d.presentVolume(id)
	if err != nil {
		return err
	}
	if err := makeFile(path); err != nil {
		return err
	}
	dev, hold, err := loop.Acquire(ctx, d.store.Image(id), loop.Options{ReadOnly: readOnly})
	if err != nil {
		return err
	}
	defer hold.Close()
	if err := errors.Join(dev.Resize(), dev.SetReadAhead(readAhead(v))); err != nil {
		return err
	}
	return filesystem.Bind(dev.Path, path, filesystem.Options{})
}

// makeFile makes an empty file to bind to, or accepts an existing one.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	switch {
	case errors.Is(err, os.ErrExist):
		if err := emptyFile(path); err != nil {
			return status.Errorf(codes.InvalidArgument, "%v: choose another target", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("make the target: %w", err)
	}
	return f.Close()
}

// release unmounts the volume from places at a path of a request, which names it by field, removes the last of them,
// and then frees the loop devices that nothing uses any more. places gets the resolved path; it is not called when the
// path does not exist. The error is a gRPC status.
func (d node) release(ctx context.Context, rpc, id, field, requested string, places func(path string) []string) error {
	switch {
	case id == "":
		return status.Error(codes.InvalidArgument, "volume_id is missing")
	case requested == "":
		return status.Errorf(codes.InvalidArgument, "%s is missing", field)
	}
	end, err := d.flight.begin(rpc, id)
	if err != nil {
		return err
	}
	defer end()
	if err := d.known(id); err != nil {
		return err
	}
	path, err := filesystem.Resolve(requested)
	var left usage
	switch {
	case err == nil:
		paths := places(path)
		if left, err = d.unmountAll(ctx, id, field, paths...); err == nil {
			err = removeTarget(paths[len(paths)-1])
		}
	case errors.Is(err, os.ErrNotExist):
		left, err = d.usage(id)
	default:
		return status.Errorf(codes.InvalidArgument, "%s: %v", field, err)
	}
	if err != nil {
		return failed(err)
	}
	return failed(d.detachUnused(id, left))
}

// known fails with NotFound if there is neither a volume with this id nor anything of it left on the node. An
// unreadable record does not prevent unmounting.
func (d node) known(id string) error {
	_, err := d.volume(id)
	if status.Code(err) != codes.NotFound {
		return nil
	}
	u, usageErr := d.usage(id)
	if usageErr != nil {
		return failed(usageErr)
	}
	if len(u.devices) > 0 {
		return nil
	}
	return err
}

// unmountAll unmounts the volume from each of the paths, as often as it is mounted there, and returns the usage that is
// left. It reports another mount at one of the paths; what names the field in the request.
func (d node) unmountAll(ctx context.Context, id, what string, paths ...string) (usage, error) {
	for {
		u, err := d.usage(id)
		if err != nil {
			return u, err
		}
		for len(paths) > 0 && u.at(paths[0]) == (place{}) {
			paths = paths[1:]
		}
		if len(paths) == 0 {
			return u, nil
		}
		if at := u.at(paths[0]); at.other != nil {
			return u, foreign(what, id, at.other)
		}
		if err := filesystem.Unmount(ctx, paths[0]); err != nil {
			return u, err
		}
	}
}

// detachUnused detaches the devices that are bound to no path: a staged block volume is bound below its staging
// path, so other devices are leftovers. Devices with mounts detach themselves.
func (d node) detachUnused(id string, u usage) error {
	for _, dev := range u.devices {
		bound := slices.ContainsFunc(u.nodes, func(n deviceNode) bool { return n.device == dev })
		if bound || dev.AutoClear {
			continue
		}
		if err := dev.Detach(d.store.Image(id)); err != nil {
			return err
		}
	}
	return nil
}

// removeTarget removes the mount point that the driver made: an empty directory or an empty file. Anything else
// does not belong to the driver, and stays. It succeeds if the path does not exist.
func removeTarget(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the target: %w", err)
	}
	if !info.IsDir() {
		if err := emptyFile(path); err != nil {
			return status.Errorf(codes.FailedPrecondition, "remove the target: %v: move it away first", err)
		}
	}
	err = os.Remove(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return status.Errorf(codes.FailedPrecondition, "remove the target: %v: move away what is in it first", err)
	}
	return nil
}

// emptyFile checks that path is an empty regular file, which may be mounted on and removed.
func emptyFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > 0 {
		return fmt.Errorf("%s exists and is not an empty file", path)
	}
	return nil
}
