package main

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// driver is the identity, controller and node service of one host.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	node     string
	segments map[string]string
	attaches bool
	late     time.Duration // 0: it is as fast as it can be
	store
}

// dawdle takes a while, in one of three calls.
func (d *driver) dawdle() {
	if d.late > 0 && rand.IntN(3) == 0 {
		time.Sleep(rand.N(d.late))
	}
}

func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "shared.csi.pannier.example", VendorVersion: "1.0.0"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		pluginCapability(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}
	if d.segments != nil {
		resp.Capabilities = append(resp.Capabilities,
			pluginCapability(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	}
	return resp, nil
}

func pluginCapability(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
	return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}}
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	}
	if d.attaches {
		types = append(types, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

func (d *driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if req.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "a name is needed")
	}
	v := &csi.Volume{VolumeId: req.GetName(), CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}
	topology := d.segments
	if wanted := req.GetAccessibilityRequirements().GetRequisite(); len(wanted) > 0 {
		topology = wanted[0].GetSegments()
	}
	if topology != nil {
		v.AccessibleTopology = []*csi.Topology{{Segments: topology}}
	}
	size := strconv.FormatInt(v.GetCapacityBytes(), 10)
	if was, err := os.ReadFile(d.path(v.GetVolumeId(), "size")); err == nil && string(was) != size {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q is there with %s bytes", v.GetVolumeId(), was)
	}
	return &csi.CreateVolumeResponse{Volume: v}, internal(errors.Join(
		os.MkdirAll(d.path(v.GetVolumeId(), "data"), 0o777), //nolint:gosec // workloads of any user write into it
		os.MkdirAll(d.path(v.GetVolumeId(), "attached"), 0o700),
		os.WriteFile(d.path(v.GetVolumeId(), "size"), []byte(size), 0o600)))
}

// DeleteVolume refuses a volume that is attached when it is called, and deletes it later, whoever has it by then.
func (d *driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	end, err := d.alone(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	switch err := d.mayDelete(req.GetVolumeId()); status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		return &csi.DeleteVolumeResponse{}, nil
	default:
		return nil, err
	}
	if d.late > 0 {
		time.Sleep(rand.N(d.late))
	}
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return &csi.DeleteVolumeResponse{}, internal(errors.Join(
		d.record(d.node, "delete", req.GetVolumeId(), "-"), os.RemoveAll(d.path(req.GetVolumeId()))))
}

func (d *driver) mayDelete(volume string) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.check(volume); err != nil {
		return err
	}
	nodes, err := d.attached(volume)
	if err == nil && len(nodes) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %q is attached to %v", volume, nodes)
	}
	return internal(err)
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context,
	req *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := d.check(req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters: req.GetParameters(),
	}}, nil
}

// ControllerPublishVolume refuses a second node if the access mode is for one node (CSI spec,
// ControllerPublishVolume Errors: "Volume published to another node").
func (d *driver) ControllerPublishVolume(_ context.Context,
	req *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.check(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := d.checkNode(req.GetNodeId()); err != nil {
		return nil, err
	}
	nodes, err := d.attached(req.GetVolumeId())
	if err != nil {
		return nil, internal(err)
	}
	others := slices.DeleteFunc(nodes, func(n string) bool { return n == req.GetNodeId() })
	if len(others) > 0 && forOneNode(req.GetVolumeCapability().GetAccessMode().GetMode()) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is attached to %v already", req.GetVolumeId(), others)
	}
	if err := os.WriteFile(d.path(req.GetVolumeId(), "attached", req.GetNodeId()), nil, 0o600); err != nil {
		return nil, internal(err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"from": d.node}},
		d.record(req.GetNodeId(), "attach", req.GetVolumeId(), d.node)
}

func forOneNode(m csi.VolumeCapability_AccessMode_Mode) bool {
	switch m {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return false
	default:
		return true
	}
}

func (d *driver) ControllerUnpublishVolume(_ context.Context,
	req *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.dawdle()
	defer d.dawdle()
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = os.Remove(d.path(req.GetVolumeId(), "attached", req.GetNodeId()))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, internal(err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, d.record(req.GetNodeId(), "detach", req.GetVolumeId(), d.node)
}

func (d *driver) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{
		{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_EXPAND_VOLUME}}},
	}}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	resp := &csi.NodeGetInfoResponse{NodeId: d.node}
	if d.segments != nil {
		resp.AccessibleTopology = &csi.Topology{Segments: maps.Clone(d.segments)}
	}
	return resp, nil
}

// NodePublishVolume mounts the volume's directory if it is attached to this node.
func (d *driver) NodePublishVolume(_ context.Context,
	req *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.check(req.GetVolumeId()); err != nil {
		return nil, err
	}
	nodes, err := d.attached(req.GetVolumeId())
	if err != nil {
		return nil, internal(err)
	}
	if d.attaches && !slices.Contains(nodes, d.node) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is not attached to this node, %s", req.GetVolumeId(),
			d.node)
	}
	target, from := req.GetTargetPath(), d.path(req.GetVolumeId(), "data")
	var have, want unix.Stat_t
	if unix.Stat(target, &have) == nil && unix.Stat(from, &want) == nil && have.Ino == want.Ino && have.Dev == want.Dev {
		return &csi.NodePublishVolumeResponse{}, nil // it was published before
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return nil, internal(err)
	}
	if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
		return nil, internal(err)
	}
	if req.GetReadonly() {
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return nil, internal(errors.Join(err, unix.Unmount(target, 0)))
		}
	}
	return &csi.NodePublishVolumeResponse{}, d.record(d.node, "publish", req.GetVolumeId(), target)
}

func (d *driver) NodeUnpublishVolume(_ context.Context,
	req *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	d.dawdle()
	defer d.dawdle()
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = unix.Unmount(req.GetTargetPath(), unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, internal(err)
	}
	if err := os.Remove(req.GetTargetPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, internal(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, d.record(d.node, "unpublish", req.GetVolumeId(), req.GetTargetPath())
}

// ControllerExpandVolume records the new size; NodeExpandVolume must follow.
func (d *driver) ControllerExpandVolume(_ context.Context,
	req *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.check(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if req.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "a size is needed")
	}
	size := req.GetCapacityRange().GetRequiredBytes()
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true},
		internal(os.WriteFile(d.path(req.GetVolumeId(), "size"), []byte(strconv.FormatInt(size, 10)), 0o600))
}

// NodeExpandVolume only records the call, because a directory has no size.
func (d *driver) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse,
	error,
) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.check(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if _, err := os.Stat(req.GetVolumePath()); err != nil {
		return nil, status.Errorf(codes.NotFound, "volume %q has no mount %q: %v", req.GetVolumeId(), req.GetVolumePath(),
			err)
	}
	return &csi.NodeExpandVolumeResponse{}, d.record(d.node, "expand", req.GetVolumeId(), req.GetVolumePath())
}
