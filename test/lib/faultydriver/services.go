package faultydriver

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// services behave like a correct driver.
type services struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer
	d       *Driver
	config  Config
	backend *backend
}

func (s *services) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	name := s.config.Name
	if name == "" {
		name = "faulty.test"
	}
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1.0.0"}, nil
}

func (s *services) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (s *services) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{}
	add := func(t csi.PluginCapability_Service_Type) {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}},
		})
	}
	if !s.config.NoController {
		add(csi.PluginCapability_Service_CONTROLLER_SERVICE)
		add(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	}
	if s.has("VOLUME_ACCESSIBILITY_CONSTRAINTS") {
		add(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	expansion := func(t csi.PluginCapability_VolumeExpansion_Type) {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_VolumeExpansion_{
				VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: t},
			},
		})
	}
	if s.has("ONLINE") {
		expansion(csi.PluginCapability_VolumeExpansion_ONLINE)
	}
	if s.config.Offline {
		expansion(csi.PluginCapability_VolumeExpansion_OFFLINE)
	}
	return resp, nil
}

func (s *services) has(capability string) bool { return !slices.Contains(s.config.Without, capability) }

// numbers lists an enum's values in order, without the zero value and the removed ones, followed by the raw ones.
func (s *services) numbers(service string, names map[int32]string, raw []int32) []int32 {
	var out []int32
	for n, name := range names {
		if n != 0 && s.has(name) && s.has(service+"."+name) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return append(out, raw...)
}

func (s *services) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, n := range s.numbers("controller", csi.ControllerServiceCapability_RPC_Type_name, s.config.RawController) {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
				Type: csi.ControllerServiceCapability_RPC_Type(n),
			}},
		})
	}
	return resp, nil
}

func (s *services) GroupControllerGetCapabilities(context.Context,
	*csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	resp := &csi.GroupControllerGetCapabilitiesResponse{}
	for _, n := range s.numbers("group", csi.GroupControllerServiceCapability_RPC_Type_name, nil) {
		resp.Capabilities = append(resp.Capabilities, &csi.GroupControllerServiceCapability{
			Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
				Type: csi.GroupControllerServiceCapability_RPC_Type(n),
			}},
		})
	}
	return resp, nil
}

func (s *services) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, n := range s.numbers("node", csi.NodeServiceCapability_RPC_Type_name, s.config.RawNode) {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
				Type: csi.NodeServiceCapability_RPC_Type(n),
			}},
		})
	}
	return resp, nil
}

func (s *services) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	id := s.config.NodeID
	if id == "" {
		id = "faulty-node"
	}
	return &csi.NodeGetInfoResponse{
		NodeId: id, MaxVolumesPerNode: s.config.MaxVolumes,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"rack": "R1"}},
	}, nil
}

func (s *services) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse,
	error,
) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}, s.backend.exists(
		req.GetVolumeId())
}

func (s *services) NodeGetVolumeStats(_ context.Context,
	req *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := s.backend.exists(req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: 100, Used: 40, Available: 60},
		{Unit: csi.VolumeUsage_INODES, Total: 10, Used: 4, Available: 6},
	}}, nil
}

func (s *services) NodeGetVolumeHealth(_ context.Context,
	req *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: req.GetVolumeId()}}, nil
}
