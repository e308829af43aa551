// Package driver implements the four CSI services on top of store, loop and filesystem. Error codes are those of
// the CSI specification's tables.
//
// Invariants:
//   - One operation is in flight per volume and per snapshot; a second one gets Aborted.
//   - Nothing about staged or published volumes is remembered: it is read from the mount table and the loop
//     devices each time (usage.go). So every call can be repeated, by another process too.
//   - A device is formatted only if its image is all zero, or if a marker says that an earlier mkfs on such an
//     image was interrupted.
//   - An unexpected mount at a requested path is reported, never unmounted.
package driver

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
	"github.com/pannier/pannier/internal/diskspace"
)

// Name is the driver's name, as GetPluginInfo reports it.
const Name = "local.csi.pannier.dev"

// topologyKey is the segment of the driver's topology: a volume is on the disk of one node.
const topologyKey = "topology." + Name + "/node"

// topology is where this node's volumes are accessible from.
func (d *Driver) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{topologyKey: d.nodeID}}
}

// isIn reports whether this node is in a topology.
func (d *Driver) isIn(t *csi.Topology) bool {
	for key, value := range t.GetSegments() {
		if key != topologyKey || value != d.nodeID {
			return false
		}
	}
	return true
}

// Driver is a CSI driver for volumes in one store on one node: what its four services share.
type Driver struct {
	version  string
	nodeID   string
	store    *store.Store
	programs filesystem.Programs
	flight   flight
	log      hclog.Logger
}

// The four services, of one driver.
type (
	identity struct {
		csi.UnimplementedIdentityServer
		*Driver
	}
	controller struct {
		csi.UnimplementedControllerServer
		*Driver
	}
	groups struct {
		csi.UnimplementedGroupControllerServer
		*Driver
	}
	node struct {
		csi.UnimplementedNodeServer
		*Driver
	}
)

// New returns a driver that serves the volumes of st on the node nodeID.
func New(version, nodeID string, st *store.Store, log hclog.Logger) *Driver {
	return &Driver{
		version:  version,
		nodeID:   nodeID,
		store:    st,
		programs: filesystem.Programs{Inherit: st.Lock()},
		log:      log,
	}
}

// Register adds the identity, controller, group controller and node services to a server.
func (d *Driver) Register(s grpc.ServiceRegistrar) {
	csi.RegisterIdentityServer(s, identity{Driver: d})
	csi.RegisterControllerServer(s, controller{Driver: d})
	csi.RegisterGroupControllerServer(s, groups{Driver: d})
	csi.RegisterNodeServer(s, node{Driver: d})
}

// registered is a volume of CreateVolume.
func (d *Driver) registered(id string) (store.Volume, error) {
	v, err := d.store.Volume(id)
	if err == nil && v.Ephemeral != "" {
		err = store.ErrNotFound
	}
	return v, err
}

// volume looks a volume up; the error is a gRPC status.
func (d *Driver) volume(id string) (store.Volume, error) {
	if id == "" {
		return store.Volume{}, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	v, err := d.registered(id)
	if errors.Is(err, store.ErrNotFound) {
		return store.Volume{}, status.Errorf(codes.NotFound,
			"volume %q does not exist in %s", id, d.store.Dir())
	}
	if err != nil {
		return store.Volume{}, failed(err)
	}
	return v, nil
}

// presentVolume is volume, for calls that need its data.
func (d *Driver) presentVolume(id string) (store.Volume, error) {
	v, err := d.volume(id)
	if err == nil && v.Missing {
		return store.Volume{}, status.Errorf(codes.Internal,
			"the image of volume %q is gone from %s: restore it there, or delete the volume", id, d.store.Image(id))
	}
	return v, err
}

// begin begins an operation on a volume whose data it needs, and which is in no other operation until end.
func (d *Driver) begin(operation, id string) (v store.Volume, end func(), err error) {
	if end, err = d.flight.begin(operation, id); err != nil {
		return v, nil, err
	}
	if v, err = d.presentVolume(id); err != nil {
		end()
	}
	return v, end, err
}

// failed gives an unexpected error a gRPC status. An error that has one keeps it.
func failed(err error) error {
	var s interface{ GRPCStatus() *status.Status }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &s):
		return status.Error(s.GRPCStatus().Code(), err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case diskspace.IsFull(err):
		return status.Errorf(codes.ResourceExhausted, "%v: free some space on the host's disk", err)
	case errors.Is(err, filesystem.ErrElsewhere):
		return status.Errorf(codes.FailedPrecondition, "%v, which is not the volume's: make a new volume", err)
	case errors.Is(err, filesystem.ErrBusy):
		return status.Errorf(codes.FailedPrecondition, "%v: stop the processes that use it and repeat", err)
	case errors.Is(err, os.ErrPermission):
		return status.Errorf(codes.Internal, "%v: the driver must run as root", err)
	}
	return status.Error(codes.Internal, err.Error())
}

// GetPluginInfo returns the driver's name and version.
func (d identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: d.version}, nil
}

// GetPluginCapabilities reports that there are a controller and a group controller, that a volume is accessible from
// one node only, and that volumes can be expanded while they are in use.
func (d identity) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

// Probe writes to the data directory, so that a full, read-only or missing disk is noticed here and not by the
// next volume.
func (d identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if err := d.store.Probe(); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// flight records which volumes and snapshots have an operation in flight. The zero value is ready to use.
type flight struct {
	mu   sync.Mutex
	busy map[string]string // id -> operation
}

// begin reserves all ids for one operation, or none and returns Aborted, the specification's code for a pending
// operation.
func (f *flight) begin(operation string, ids ...string) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		if other, ok := f.busy[id]; ok {
			return nil, status.Errorf(codes.Aborted,
				"%s: %q has a %s in flight: repeat the call when that has ended", operation, id, other)
		}
	}
	if f.busy == nil {
		f.busy = make(map[string]string)
	}
	for _, id := range ids {
		f.busy[id] = operation
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range ids {
			delete(f.busy, id)
		}
	}, nil
}
