package driver

import (
	"context"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

// The volume condition was a capability up to version 1.12 of the CSI spec, which then removed these numbers;
// older drivers still send them.
const (
	controllerVolumeCondition = csi.ControllerServiceCapability_RPC_Type(11)
	nodeVolumeCondition       = csi.NodeServiceCapability_RPC_Type(4)
)

// Controller has the capabilities of the driver's controller service.
type Controller struct {
	storage.ControllerCapabilities
	GetVolume    bool // GET_VOLUME: ControllerGetVolume
	VolumeHealth bool // GET_VOLUME_HEALTH: ControllerGetVolumeHealth
	Modify       bool // MODIFY_VOLUME
	// GroupSnapshots: CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT of the group controller service.
	GroupSnapshots bool
}

// Node has the capabilities of the driver's node service. NodeID, MaxVolumes and AccessibleTopology are not set,
// because they come from NodeGetInfo.
type Node struct {
	storage.NodeCapabilities
	VolumeHealth bool // GET_VOLUME_HEALTH: NodeGetVolumeHealth
}

// cache keeps a driver's answer for as long as its connection lasts.
type cache[T any] struct {
	mu    sync.Mutex
	epoch uint64
	set   bool
	value T
}

func (c *cache[T]) get(epoch uint64) (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.set && c.epoch == epoch
}

func (c *cache[T]) put(epoch uint64, value T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch, c.value, c.set = epoch, value, true
}

// ControllerCaps returns the capabilities of the controller service, read once for each connection, or nil if
// there is none. It is called inside Do.
func (c *Conn) ControllerCaps(ctx context.Context) (*Controller, error) {
	if caps, ok := c.controller.get(c.epoch.Load()); ok {
		return caps, nil
	}
	return c.FetchControllerCaps(ctx)
}

// FetchControllerCaps is ControllerCaps that always asks the driver.
func (c *Conn) FetchControllerCaps(ctx context.Context) (*Controller, error) {
	epoch := c.nextEpoch()
	plugin, err := quick(ctx, c, func(ctx context.Context) (*csi.GetPluginCapabilitiesResponse, error) {
		return c.Identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	})
	if err != nil {
		return nil, err
	}
	caps := &Controller{}
	present, groups, online, offline := false, false, false, false
	for _, p := range plugin.GetCapabilities() {
		switch p.GetService().GetType() {
		case csi.PluginCapability_Service_CONTROLLER_SERVICE:
			present = true
		case csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE:
			groups = true
		case csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			caps.Topology = true
		}
		switch p.GetVolumeExpansion().GetType() {
		case csi.PluginCapability_VolumeExpansion_ONLINE:
			online = true
		case csi.PluginCapability_VolumeExpansion_OFFLINE:
			offline = true
		}
	}
	// Many drivers with EXPAND_VOLUME declare neither. They expand volumes in use, or answer FailedPrecondition.
	caps.OnlineExpand = online || !offline
	if !present {
		c.controller.put(epoch, nil)
		return nil, nil
	}
	resp, err := quick(ctx, c, func(ctx context.Context) (*csi.ControllerGetCapabilitiesResponse, error) {
		return c.Controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	})
	if status.Code(err) == codes.Unimplemented {
		// Many drivers whose controller is another process declare the service all the same.
		c.controller.put(epoch, nil)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, rpc := range resp.GetCapabilities() {
		caps.add(rpc.GetRpc().GetType())
	}
	if groups {
		resp, err := quick(ctx, c, func(ctx context.Context) (*csi.GroupControllerGetCapabilitiesResponse, error) {
			return c.Group.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
		})
		if err != nil && status.Code(err) != codes.Unimplemented {
			return nil, err
		}
		for _, rpc := range resp.GetCapabilities() {
			caps.GroupSnapshots = caps.GroupSnapshots || rpc.GetRpc().GetType() ==
				csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
		}
	}
	c.controller.put(epoch, caps)
	return caps, nil
}

func (c *Controller) add(t csi.ControllerServiceCapability_RPC_Type) {
	switch t {
	case csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:
		c.CreateDelete = true
	case csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:
		c.AttachDetach = true
	case csi.ControllerServiceCapability_RPC_PUBLISH_READONLY:
		c.AttachReadOnly = true
	case csi.ControllerServiceCapability_RPC_LIST_VOLUMES:
		c.ListVolumes = true
	case csi.ControllerServiceCapability_RPC_GET_CAPACITY:
		c.GetCapacity = true
	case csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:
		c.CreateDeleteSnapshot = true
	case csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:
		c.ListSnapshots = true
	case csi.ControllerServiceCapability_RPC_CLONE_VOLUME:
		c.Clone = true
	case csi.ControllerServiceCapability_RPC_EXPAND_VOLUME:
		c.Expand = true
	case csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
		c.SingleNodeMultiWriter = true
	case csi.ControllerServiceCapability_RPC_GET_VOLUME:
		c.GetVolume = true
	case csi.ControllerServiceCapability_RPC_MODIFY_VOLUME:
		c.Modify = true
	case csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH:
		c.VolumeHealth = true
		c.VolumeCondition = true
	case controllerVolumeCondition,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH:
		c.VolumeCondition = true
	}
}

// NodeCaps returns the capabilities of the node service, read once for each connection, or nil if there is none.
// It is called inside Do.
func (c *Conn) NodeCaps(ctx context.Context) (*Node, error) {
	if caps, ok := c.node.get(c.epoch.Load()); ok {
		return caps, nil
	}
	return c.FetchNodeCaps(ctx)
}

// FetchNodeCaps is NodeCaps that always asks the driver. The identity service does not report whether there is a
// node service; a missing one answers Unimplemented.
func (c *Conn) FetchNodeCaps(ctx context.Context) (*Node, error) {
	epoch := c.nextEpoch()
	resp, err := quick(ctx, c, func(ctx context.Context) (*csi.NodeGetCapabilitiesResponse, error) {
		return c.Node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	})
	if status.Code(err) == codes.Unimplemented {
		c.node.put(epoch, nil)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	caps := &Node{}
	for _, rpc := range resp.GetCapabilities() {
		caps.add(rpc.GetRpc().GetType())
	}
	c.node.put(epoch, caps)
	return caps, nil
}

func (n *Node) add(t csi.NodeServiceCapability_RPC_Type) {
	switch t {
	case csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
		n.StageUnstage = true
	case csi.NodeServiceCapability_RPC_GET_VOLUME_STATS:
		n.VolumeStats = true
	case csi.NodeServiceCapability_RPC_EXPAND_VOLUME:
		n.Expand = true
	case csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
		n.SingleNodeMultiWriter = true
	case csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
		n.VolumeMountGroup = true
	case csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH:
		n.VolumeHealth = true
		n.VolumeCondition = true
	case nodeVolumeCondition:
		n.VolumeCondition = true
	}
}

// quick bounds an RPC of the class ask that is part of another operation, whose own deadline may be longer.
func quick[T any](ctx context.Context, c *Conn, rpc func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timing.Ask)
	defer cancel()
	return rpc(ctx)
}
