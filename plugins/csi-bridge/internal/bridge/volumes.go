package bridge

import (
	"context"
	"fmt"
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

// Create implements storage.Provisioner. An interrupted call is repeated with the same name, so that the driver
// finds the volume it has made already.
func (b *Bridge) Create(ctx context.Context, d storage.Driver, req storage.CreateRequest) (storage.CreateResponse,
	error,
) {
	op := driver.Op{
		RPC:      driver.CreateVolume,
		Object:   req.Name,
		Key:      "create " + req.Name,
		Redactor: driver.NewRedactor(req.Secrets, req.Capabilities...),
	}
	if req.Full {
		op.RPC = driver.CreateWithoutRoom
	}
	resp, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.CreateVolumeResponse, error) {
			creq, err := createRequest(req, caps)
			if err != nil {
				return nil, err
			}
			resp, err := c.Controller.CreateVolume(ctx, creq)
			if err == nil && resp.GetVolume().GetVolumeId() == "" {
				err = withoutID("CreateVolume")
			}
			return resp, err
		})
	if err != nil {
		return storage.CreateResponse{}, err
	}
	v := resp.GetVolume()
	var warnings []string
	from := v.GetContentSource()
	if from.GetSnapshot().GetSnapshotId() != req.SnapshotID || from.GetVolume().GetVolumeId() != req.CloneID {
		warnings = []string{fmt.Sprintf("the driver did not confirm that it has made the volume from %q: look whether the data is "+
			"there; pannier volume register of the volume ends this warning", req.SnapshotID+req.CloneID)}
	}
	return storage.CreateResponse{
		Warnings:           warnings,
		ExternalID:         v.GetVolumeId(),
		Capacity:           v.GetCapacityBytes(),
		Context:            v.GetVolumeContext(),
		AccessibleTopology: topologies(v.GetAccessibleTopology()),
	}, nil
}

// withoutID is the error for an answer without an id, which breaks the spec: the new object could never be
// referred to.
func withoutID(rpc string) error {
	return status.Errorf(codes.Internal, "the driver answered %s without an id: only the driver knows what it made", rpc)
}

func createRequest(req storage.CreateRequest, caps *driver.Controller) (*csi.CreateVolumeRequest, error) {
	if !caps.CreateDelete {
		return nil, lacks("CREATE_DELETE_VOLUME")
	}
	vcs, err := capabilities(req.Capabilities, features{singleNodeMultiWriter: caps.SingleNodeMultiWriter})
	if err != nil {
		return nil, err
	}
	source, err := contentSource(req, caps)
	if err != nil {
		return nil, err
	}
	topology, err := topologyRequirement(req.Topology, caps)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeRequest{
		Name:                      req.Name,
		CapacityRange:             capacityRange(req.CapacityMin, req.CapacityMax),
		VolumeCapabilities:        vcs,
		Parameters:                req.Parameters,
		Secrets:                   req.Secrets,
		VolumeContentSource:       source,
		AccessibilityRequirements: topology,
	}, nil
}

// needs is the error for an argument that requires a capability which the driver does not have.
func needs(argument, capability string) error {
	return status.Errorf(codes.FailedPrecondition, "%s needs %s, which the driver does not implement", argument,
		capability)
}

func contentSource(req storage.CreateRequest, caps *driver.Controller) (*csi.VolumeContentSource, error) {
	switch {
	case req.SnapshotID != "" && req.CloneID != "":
		return nil, status.Error(codes.InvalidArgument, "at most one of snapshot_id and clone_id can be the source")
	case req.SnapshotID != "":
		if !caps.CreateDeleteSnapshot {
			return nil, needs("a snapshot as the source", "CREATE_DELETE_SNAPSHOT")
		}
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: req.SnapshotID},
		}}, nil
	case req.CloneID != "":
		if !caps.Clone {
			return nil, needs("a volume as the source", "CLONE_VOLUME")
		}
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: req.CloneID},
		}}, nil
	}
	return nil, nil
}

func topologyRequirement(t storage.TopologyRequirement, caps *driver.Controller) (*csi.TopologyRequirement, error) {
	if len(t.Requisite) == 0 && len(t.Preferred) == 0 {
		return nil, nil
	}
	if !caps.Topology {
		return nil, needs("a topology request", "VOLUME_ACCESSIBILITY_CONSTRAINTS")
	}
	return &csi.TopologyRequirement{Requisite: csiTopologies(t.Requisite), Preferred: csiTopologies(t.Preferred)}, nil
}

func csiTopologies(ts []storage.Topology) []*csi.Topology {
	var out []*csi.Topology
	for _, t := range ts {
		out = append(out, &csi.Topology{Segments: t})
	}
	return out
}

func topologies(ts []*csi.Topology) []storage.Topology {
	var out []storage.Topology
	for _, t := range ts {
		out = append(out, t.GetSegments())
	}
	return out
}

// capacityRange returns nil if there is no bound.
func capacityRange(minBytes, maxBytes int64) *csi.CapacityRange {
	if minBytes == 0 && maxBytes == 0 {
		return nil
	}
	return &csi.CapacityRange{RequiredBytes: minBytes, LimitBytes: maxBytes}
}

// Capacity implements storage.CapacityReader. A topology is sent only to a driver that has some.
func (b *Bridge) Capacity(ctx context.Context, d storage.Driver, req storage.CapacityRequest) (storage.Capacity,
	error,
) {
	op := driver.Op{RPC: driver.GetCapacity, Redactor: driver.NewRedactor(nil, req.Capabilities...)}
	resp, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.GetCapacityResponse, error) {
			if !caps.GetCapacity {
				return nil, lacks("GET_CAPACITY")
			}
			vcs, err := capabilities(req.Capabilities, features{singleNodeMultiWriter: caps.SingleNodeMultiWriter})
			if err != nil {
				return nil, err
			}
			creq := &csi.GetCapacityRequest{VolumeCapabilities: vcs, Parameters: req.Parameters}
			if caps.Topology && len(req.Topology) > 0 {
				creq.AccessibleTopology = &csi.Topology{Segments: req.Topology}
			}
			return c.Controller.GetCapacity(ctx, creq)
		})
	return storage.Capacity{
		Available:     resp.GetAvailableCapacity(),
		MaximumVolume: resp.GetMaximumVolumeSize().GetValue(),
		MinimumVolume: resp.GetMinimumVolumeSize().GetValue(),
	}, err
}

// Delete implements storage.Provisioner.
func (b *Bridge) Delete(ctx context.Context, d storage.Driver, v storage.Volume) error {
	_, err := controllerDo(ctx, b, d, onVolume(driver.DeleteVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.DeleteVolumeResponse, error) {
			if !caps.CreateDelete {
				return nil, lacks("CREATE_DELETE_VOLUME")
			}
			return c.Controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.ExternalID, Secrets: v.Secrets})
		})
	return absentIsDone(err)
}

// List implements storage.Provisioner. Aborted means that the page's token is no longer valid: the caller starts
// again.
func (b *Bridge) List(ctx context.Context, d storage.Driver, page storage.Page) (storage.ListResponse, error) {
	resp, err := controllerDo(ctx, b, d, driver.Op{RPC: driver.ListVolumes},
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ListVolumesResponse, error) {
			if !caps.ListVolumes {
				return nil, lacks("LIST_VOLUMES")
			}
			return c.Controller.ListVolumes(ctx,
				&csi.ListVolumesRequest{MaxEntries: maxEntries(page), StartingToken: page.Token})
		})
	if err != nil {
		return storage.ListResponse{}, err
	}
	out := storage.ListResponse{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		out.Volumes = append(out.Volumes, listed(e.GetVolume(), e.GetStatus(), driver.Redactor{}))
	}
	return out, nil
}

// listed converts a volume and its status, which ListVolumes and ControllerGetVolume have in types of their own.
func listed(v *csi.Volume, status interface {
	proto.Message
	GetPublishedNodeIds() []string
}, hide driver.Redactor,
) storage.ListedVolume {
	return storage.ListedVolume{
		ExternalID:       v.GetVolumeId(),
		Capacity:         v.GetCapacityBytes(),
		Context:          v.GetVolumeContext(),
		PublishedNodeIDs: status.GetPublishedNodeIds(),
		Condition:        oldCondition(status, hide),
		SnapshotID:       v.GetContentSource().GetSnapshot().GetSnapshotId(),
		CloneID:          v.GetContentSource().GetVolume().GetVolumeId(),
	}
}

// Get implements storage.VolumeReader. The condition comes from ControllerGetVolumeHealth (CSI 1.13) or from the field
// that older drivers fill in.
func (b *Bridge) Get(ctx context.Context, d storage.Driver, v storage.Volume) (storage.ListedVolume, error) {
	op := onVolume(driver.GetVolume, v)
	return controllerDo(ctx, b, d, op, func(ctx context.Context, c *driver.Conn,
		caps *driver.Controller,
	) (storage.ListedVolume, error) {
		out := storage.ListedVolume{ExternalID: v.ExternalID}
		if !caps.GetVolume && !caps.VolumeHealth {
			return out, lacks("GET_VOLUME")
		}
		if caps.GetVolume {
			resp, err := c.Controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: v.ExternalID})
			if err != nil {
				return out, err
			}
			out = listed(resp.GetVolume(), resp.GetStatus(), op.Redactor)
		}
		if caps.VolumeHealth {
			resp, err := c.Controller.ControllerGetVolumeHealth(ctx,
				&csi.ControllerGetVolumeHealthRequest{VolumeId: v.ExternalID})
			if err != nil {
				return out, err
			}
			out.Condition = condition(resp.GetVolumeHealth(), op.Redactor)
		}
		return out, nil
	})
}

// Modify implements storage.Modifier.
func (b *Bridge) Modify(ctx context.Context, d storage.Driver, req storage.ModifyRequest) error {
	v := req.Volume
	_, err := controllerDo(ctx, b, d, onVolume(driver.ModifyVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ControllerModifyVolumeResponse, error) {
			if !caps.Modify {
				return nil, lacks("MODIFY_VOLUME")
			}
			return c.Controller.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
				VolumeId: v.ExternalID, Secrets: v.Secrets, MutableParameters: req.Parameters,
			})
		})
	return err
}

// maxEntries returns the page's size for CSI; 0 leaves it to the driver.
func maxEntries(p storage.Page) int32 { return int32(max(0, min(p.Max, math.MaxInt32))) }

// Expand implements storage.Expander.
func (b *Bridge) Expand(ctx context.Context, d storage.Driver, req storage.ExpandRequest) (storage.ExpandResponse,
	error,
) {
	v := req.Volume
	resp, err := controllerDo(ctx, b, d, onVolume(driver.ExpandVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ControllerExpandVolumeResponse, error) {
			if !caps.Expand {
				return nil, lacks("EXPAND_VOLUME in its controller service")
			}
			vc, err := optionalCapability(v.Capability, features{singleNodeMultiWriter: caps.SingleNodeMultiWriter})
			if err != nil {
				return nil, err
			}
			return c.Controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
				VolumeId:         v.ExternalID,
				CapacityRange:    capacityRange(req.CapacityMin, req.CapacityMax),
				Secrets:          v.Secrets,
				VolumeCapability: vc,
			})
		})
	return storage.ExpandResponse{
		Capacity:              resp.GetCapacityBytes(),
		NodeExpansionRequired: resp.GetNodeExpansionRequired(),
	}, err
}

// ExpandNode implements storage.Expander.
func (b *Bridge) ExpandNode(ctx context.Context, d storage.Driver, req storage.ExpandNodeRequest) (int64, error) {
	v := req.Volume
	resp, err := nodeDo(ctx, b, d, onVolume(driver.ExpandNodeVolume, v),
		func(ctx context.Context, c *driver.Conn, caps *driver.Node) (*csi.NodeExpandVolumeResponse, error) {
			if !caps.Expand {
				return nil, lacks("EXPAND_VOLUME in its node service")
			}
			vc, err := optionalCapability(v.Capability, nodeFeatures(caps))
			if err != nil {
				return nil, err
			}
			return c.Node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId:          v.ExternalID,
				VolumePath:        req.VolumePath,
				CapacityRange:     capacityRange(req.CapacityMin, req.CapacityMax),
				StagingTargetPath: req.StagingPath,
				VolumeCapability:  vc,
				Secrets:           v.Secrets,
			})
		})
	return resp.GetCapacityBytes(), err
}

// optionalCapability is capability for calls in which the spec does not require one: an unclaimed volume has no
// modes.
func optionalCapability(c storage.Capability, has features) (*csi.VolumeCapability, error) {
	if c.AccessMode == "" && c.AttachmentMode == "" {
		return nil, nil
	}
	return capability(c, has)
}

// CreateSnapshot implements storage.Snapshotter. It counts as an operation on the volume, of which only one runs
// at a time.
func (b *Bridge) CreateSnapshot(ctx context.Context, d storage.Driver,
	req storage.CreateSnapshotRequest,
) (storage.Snapshot, error) {
	op := onVolume(driver.CreateSnapshot, req.Volume)
	op.Object = req.Name
	var diedBefore, listed bool
	resp, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.CreateSnapshotResponse, error) {
			if !caps.CreateDeleteSnapshot {
				return nil, lacks("CREATE_DELETE_SNAPSHOT")
			}
			listed = caps.ListSnapshots
			resp, err := c.Controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
				SourceVolumeId: req.Volume.ExternalID,
				Name:           req.Name,
				Secrets:        req.Volume.Secrets,
				Parameters:     req.Parameters,
			})
			diedBefore = driver.DiedBefore(ctx)
			if err == nil && resp.GetSnapshot().GetSnapshotId() == "" {
				err = withoutID("CreateSnapshot")
			}
			return resp, err
		})
	if err != nil {
		return storage.Snapshot{}, err
	}
	taken := snapshot(resp.GetSnapshot())
	if diedBefore {
		taken.Warnings = []string{b.afterDeath(ctx, d, taken, req.Volume.Secrets, listed)}
	}
	return taken, nil
}

// afterDeath is the warning for a snapshot that the driver ended in. Asked again for the same name, a driver finds
// what it had begun, and some report it without looking whether it is complete.
func (b *Bridge) afterDeath(ctx context.Context, d storage.Driver, taken storage.Snapshot, secrets map[string]string,
	listed bool,
) string {
	const warning = "the driver ended while it took the snapshot; asked again, it reports it as taken, which may be " +
		"what the first attempt left: restore it somewhere before you rely on it. "
	if !listed {
		return warning + "The driver lists no snapshots, so this could not be checked"
	}
	list, err := b.ListSnapshots(ctx, d, storage.ListSnapshotsRequest{SnapshotID: taken.ID, Secrets: secrets})
	switch {
	case err != nil:
		return warning + "It could not be checked: " + status.Convert(err).Message()
	case len(list.Snapshots) == 0:
		return warning + "The driver does not list it"
	}
	s := list.Snapshots[0]
	switch {
	case s.VolumeExternalID != taken.VolumeExternalID:
		return warning + fmt.Sprintf("The driver lists it as one of volume %q", s.VolumeExternalID)
	case s.Size != taken.Size:
		return warning + fmt.Sprintf("The driver lists it with %d bytes, and answered %d", s.Size, taken.Size)
	case !s.Ready:
		return warning + fmt.Sprintf("The driver lists it with %d bytes, as not ready to use yet", s.Size)
	}
	return warning + fmt.Sprintf("The driver lists it with %d bytes, as ready to use", s.Size)
}

// DeleteSnapshot implements storage.Snapshotter.
func (b *Bridge) DeleteSnapshot(ctx context.Context, d storage.Driver, snapshotID string,
	secrets map[string]string,
) error {
	op := driver.Op{
		RPC:      driver.DeleteSnapshot,
		Object:   snapshotID,
		Key:      "snapshot " + snapshotID,
		Redactor: driver.NewRedactor(secrets),
	}
	_, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.DeleteSnapshotResponse, error) {
			if !caps.CreateDeleteSnapshot {
				return nil, lacks("CREATE_DELETE_SNAPSHOT")
			}
			return c.Controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshotID, Secrets: secrets})
		})
	return absentIsDone(err)
}

// ListSnapshots implements storage.Snapshotter. Aborted means that the page's token is no longer valid: the caller
// starts again.
func (b *Bridge) ListSnapshots(ctx context.Context, d storage.Driver,
	req storage.ListSnapshotsRequest,
) (storage.ListSnapshotsResponse, error) {
	op := driver.Op{RPC: driver.ListSnapshots, Redactor: driver.NewRedactor(req.Secrets)}
	resp, err := controllerDo(ctx, b, d, op,
		func(ctx context.Context, c *driver.Conn, caps *driver.Controller) (*csi.ListSnapshotsResponse, error) {
			if !caps.ListSnapshots {
				return nil, lacks("LIST_SNAPSHOTS")
			}
			return c.Controller.ListSnapshots(ctx, &csi.ListSnapshotsRequest{
				MaxEntries:     maxEntries(req.Page),
				StartingToken:  req.Page.Token,
				SourceVolumeId: req.VolumeExternalID,
				SnapshotId:     req.SnapshotID,
				Secrets:        req.Secrets,
			})
		})
	if err != nil {
		return storage.ListSnapshotsResponse{}, err
	}
	out := storage.ListSnapshotsResponse{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		out.Snapshots = append(out.Snapshots, snapshot(e.GetSnapshot()))
	}
	return out, nil
}

func snapshot(s *csi.Snapshot) storage.Snapshot {
	out := storage.Snapshot{
		ID:               s.GetSnapshotId(),
		VolumeExternalID: s.GetSourceVolumeId(),
		Size:             s.GetSizeBytes(),
		Ready:            s.GetReadyToUse(),
		GroupID:          s.GetGroupSnapshotId(),
	}
	if t := s.GetCreationTime(); t != nil {
		out.CreatedAt = t.AsTime()
	}
	return out
}
