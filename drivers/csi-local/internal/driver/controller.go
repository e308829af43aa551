package driver

import (
	"cmp"
	"context"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/loop"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// ControllerGetCapabilities lists the controller's capabilities.
func (d controller) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// DeleteVolume removes an unused volume. Its snapshots and clones are independent copies and stay.
func (d controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	end, err := d.flight.begin("DeleteVolume", id)
	if err != nil {
		return nil, err
	}
	defer end()
	u, err := d.settled(ctx, id)
	if err != nil {
		return nil, failed(err)
	}
	if len(u.devices) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition,
			"volume %q is in use (%s): unpublish and unstage it first", id, u)
	}
	if err := d.store.DeleteVolume(id); err != nil {
		return nil, failed(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms what CreateVolume and the node service would accept for this volume; otherwise
// the message explains why not.
func (d controller) ValidateVolumeCapabilities(_ context.Context,
	req *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities are missing")
	}
	refuse := func(why string) (*csi.ValidateVolumeCapabilitiesResponse, error) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}
	fsType, _, err := parseCapabilities(req.GetVolumeCapabilities())
	switch {
	case err != nil:
		return refuse(err.Error())
	case fsType != "" && v.FSType != "" && fsType != v.FSType:
		return refuse("the volume's file system is " + v.FSType + ", not " + fsType)
	case len(req.GetVolumeContext()) > 0:
		return refuse("the volume has no volume_context")
	case len(req.GetParameters()) > 0 && !maps.Equal(req.GetParameters(), v.Parameters):
		return refuse("the volume was created with other parameters")
	}
	if err := checkMutable(req.GetMutableParameters()); err != nil {
		return refuse("mutable_parameters: " + err.Error())
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
		MutableParameters:  req.GetMutableParameters(),
	}}, nil
}

// GetCapacity returns the free space of the host's disk; none for another node's topology. Unsupported parameters or
// capabilities are an error, which says more than no capacity.
func (d controller) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	minimum, err := minimumFor(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if in := req.GetAccessibleTopology(); in != nil && !d.isIn(in) {
		return &csi.GetCapacityResponse{}, nil
	}
	k, err := d.disk()
	if err != nil {
		return nil, err
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: k.available,
		MaximumVolumeSize: wrapperspb.Int64(k.available),
		MinimumVolumeSize: wrapperspb.Int64(minimum),
	}, nil
}

// minimumFor returns the smallest volume with these parameters and capabilities.
func minimumFor(req *csi.GetCapacityRequest) (minimum int64, err error) {
	fsType, err := parseParameters(req.GetParameters())
	if caps := req.GetVolumeCapabilities(); err == nil && len(caps) > 0 {
		var asked string
		var mount bool
		if asked, mount, err = parseCapabilities(caps); err == nil {
			fsType, err = chooseFSType(asked, fsType)
		}
		if mount {
			fsType = cmp.Or(fsType, filesystem.Default)
		}
	}
	return filesystem.MinSize(fsType), err
}

// ControllerExpandVolume enlarges the image, whether or not the volume is in use. A staged volume then needs
// NodeExpandVolume; an unstaged one gets its new size when it is staged.
func (d controller) ControllerExpandVolume(_ context.Context,
	req *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	id := req.GetVolumeId()
	if req.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity_range is missing")
	}
	if c := req.GetVolumeCapability(); c != nil {
		if _, err := parseCapability(c); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	v, end, err := d.begin("ControllerExpandVolume", id)
	if err != nil {
		return nil, err
	}
	defer end()
	capacity, err := chooseCapacity(req.GetCapacityRange(), v.Capacity, v.Capacity)
	if err != nil {
		return nil, err
	}
	if capacity > v.Capacity {
		k, err := d.disk()
		if err != nil {
			return nil, err
		}
		if err := k.fits(capacity, capacity-v.Capacity); err != nil {
			return nil, err
		}
		if err := d.store.Grow(id, capacity); err != nil {
			return nil, failed(err)
		}
	}
	devices, err := loop.Find(d.store.Image(id))
	if err != nil {
		return nil, failed(err)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: capacity, NodeExpansionRequired: len(devices) > 0}, nil
}

// ControllerGetVolumeHealth reports a volume whose image is gone.
func (d controller) ControllerGetVolumeHealth(_ context.Context,
	req *csi.ControllerGetVolumeHealthRequest,
) (*csi.ControllerGetVolumeHealthResponse, error) {
	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health(v.ID, d.imageHealth(v))}, nil
}

// ControllerListVolumeHealth lists the volumes whose image is gone, in order of their ids, page by page.
func (d controller) ControllerListVolumeHealth(_ context.Context,
	req *csi.ControllerListVolumeHealthRequest,
) (*csi.ControllerListVolumeHealthResponse, error) {
	ids, err := d.store.VolumeIDs()
	if err != nil {
		return nil, failed(err)
	}
	entries, next, err := page(ids, req, store.IsVolumeID, func(id string) (*csi.VolumeHealth, error) {
		v, err := d.registered(id)
		if err == nil && !v.Missing {
			err = store.ErrNotFound // in this list
		}
		return health(id, d.imageHealth(v)), err
	})
	return &csi.ControllerListVolumeHealthResponse{Entries: entries, NextToken: next}, err
}
