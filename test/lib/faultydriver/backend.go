package faultydriver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// backend is the storage behind the driver. It survives a restart.
type backend struct {
	mu        sync.Mutex
	made      int
	volumes   []*volume
	snapshots []*csi.Snapshot
	names     map[string]string // of snapshots: name to id
	room      int64             // bytes for volumes; 0: enough
	preparing bool              // snapshots
}

type volume struct {
	*csi.Volume
	name  string
	nodes []string // that it is attached to
}

func newBackend() *backend { return &backend{names: map[string]string{}} }

// AddVolume adds a volume without CreateVolume.
func (d *Driver) AddVolume(id string) {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	d.backend.volumes = append(d.backend.volumes, &volume{Volume: &csi.Volume{VolumeId: id}, name: id})
}

// AddSnapshot adds a snapshot without CreateSnapshot.
func (d *Driver) AddSnapshot(id, volumeID string) {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	d.backend.snapshots = append(d.backend.snapshots,
		&csi.Snapshot{SnapshotId: id, SourceVolumeId: volumeID, ReadyToUse: true})
}

// SetPreparing sets whether the snapshots that there are, and those to come, are not ready to use.
func (d *Driver) SetPreparing(preparing bool) {
	b := d.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	b.preparing = preparing
	for n, snapshot := range b.snapshots {
		changed := proto.CloneOf(snapshot)
		changed.ReadyToUse = !preparing
		b.snapshots[n] = changed
	}
}

// SetRoom limits the bytes of all volumes together; 0: there is enough.
func (d *Driver) SetRoom(bytes int64) {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	d.backend.room = bytes
}

// Volumes returns the ids of all volumes.
func (d *Driver) Volumes() []string {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	var ids []string
	for _, v := range d.backend.volumes {
		ids = append(ids, v.GetVolumeId())
	}
	return ids
}

// AttachedTo returns the nodes that a volume is attached to.
func (d *Driver) AttachedTo(id string) []string {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	if v := d.backend.find(id); v != nil {
		return slices.Clone(v.nodes)
	}
	return nil
}

// Forget deletes all of the driver's state, like that of a driver with its state in memory or on a lost disk.
// Mounts stay.
func (d *Driver) Forget() {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	d.backend.volumes, d.backend.snapshots = nil, nil
	clear(d.backend.names)
}

func (b *backend) find(id string) *volume {
	for _, v := range b.volumes {
		if v.GetVolumeId() == id {
			return v
		}
	}
	return nil
}

func (b *backend) exists(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.get(id)
	return err
}

func (b *backend) get(id string) (*volume, error) {
	if v := b.find(id); v != nil {
		return v, nil
	}
	return nil, status.Errorf(codes.NotFound, "no volume %q", id)
}

// id returns a new id; the caller holds mu.
func (b *backend) id(kind string) string {
	b.made++
	return fmt.Sprintf("%s-%d", kind, b.made)
}

func (s *services) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	b := s.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.volumes {
		if v.name == req.GetName() {
			return &csi.CreateVolumeResponse{Volume: proto.CloneOf(v.Volume)}, nil
		}
	}
	if required := req.GetCapacityRange().GetRequiredBytes(); required > b.available() {
		return nil, status.Errorf(codes.ResourceExhausted, "%d bytes do not fit", required)
	}
	v := &volume{name: req.GetName(), Volume: &csi.Volume{
		VolumeId:           b.id("vol"),
		CapacityBytes:      req.GetCapacityRange().GetRequiredBytes(),
		VolumeContext:      map[string]string{"made-by": "faulty"},
		ContentSource:      req.GetVolumeContentSource(),
		AccessibleTopology: req.GetAccessibilityRequirements().GetPreferred(),
	}}
	b.volumes = append(b.volumes, v)
	return &csi.CreateVolumeResponse{Volume: proto.CloneOf(v.Volume)}, nil
}

// available returns the bytes that are left for volumes; the caller holds mu.
func (b *backend) available() int64 {
	left := b.room
	if left == 0 {
		left = 1 << 50
	}
	for _, v := range b.volumes {
		left -= v.GetCapacityBytes()
	}
	return left
}

func (s *services) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	left := s.backend.available()
	return &csi.GetCapacityResponse{
		AvailableCapacity: left, MaximumVolumeSize: wrapperspb.Int64(left), MinimumVolumeSize: wrapperspb.Int64(1 << 20),
	}, nil
}

func (s *services) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	s.backend.volumes = slices.DeleteFunc(s.backend.volumes,
		func(v *volume) bool { return v.GetVolumeId() == req.GetVolumeId() })
	return &csi.DeleteVolumeResponse{}, nil
}

func (s *services) ControllerPublishVolume(_ context.Context,
	req *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	v, err := s.backend.get(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if !slices.Contains(v.nodes, req.GetNodeId()) {
		v.nodes = append(v.nodes, req.GetNodeId())
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/" +
		v.GetVolumeId()}}, nil
}

func (s *services) ControllerUnpublishVolume(_ context.Context,
	req *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	if v := s.backend.find(req.GetVolumeId()); v != nil {
		v.nodes = slices.DeleteFunc(v.nodes, func(n string) bool { return n == req.GetNodeId() || req.GetNodeId() == "" })
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (s *services) ValidateVolumeCapabilities(_ context.Context,
	req *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := s.backend.exists(req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters: req.GetParameters(),
	}}, nil
}

func (s *services) ControllerExpandVolume(_ context.Context,
	req *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	v, err := s.backend.get(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	v.CapacityBytes = max(v.GetCapacityBytes(), req.GetCapacityRange().GetRequiredBytes())
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.GetCapacityBytes(), NodeExpansionRequired: true}, nil
}

func (s *services) ControllerGetVolume(_ context.Context,
	req *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	v, err := s.backend.get(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: proto.CloneOf(v.Volume),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: slices.Clone(v.nodes)},
	}, nil
}

func (s *services) ControllerGetVolumeHealth(_ context.Context,
	req *csi.ControllerGetVolumeHealthRequest,
) (*csi.ControllerGetVolumeHealthResponse, error) {
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: req.GetVolumeId()}},
		s.backend.exists(req.GetVolumeId())
}

func (s *services) ControllerModifyVolume(_ context.Context,
	req *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	return &csi.ControllerModifyVolumeResponse{}, s.backend.exists(req.GetVolumeId())
}

func (s *services) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	from, to, next, err := page(len(s.backend.volumes), req.GetMaxEntries(), req.GetStartingToken())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range s.backend.volumes[from:to] {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{
			Volume: proto.CloneOf(v.Volume),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: slices.Clone(v.nodes)},
		})
	}
	return resp, nil
}

func (s *services) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse,
	error,
) {
	b := s.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.get(req.GetSourceVolumeId()); err != nil {
		return nil, err
	}
	for _, old := range b.snapshots {
		if old.GetSnapshotId() == b.names[req.GetName()] {
			return &csi.CreateSnapshotResponse{Snapshot: old}, nil
		}
	}
	snap := &csi.Snapshot{
		SnapshotId: b.id("snap"), SourceVolumeId: req.GetSourceVolumeId(), SizeBytes: 1 << 20,
		CreationTime: timestamppb.New(time.Now()), ReadyToUse: !b.preparing,
	}
	b.names[req.GetName()] = snap.GetSnapshotId()
	b.snapshots = append(b.snapshots, snap)
	return &csi.CreateSnapshotResponse{Snapshot: snap}, nil
}

func (s *services) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse,
	error,
) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	s.backend.snapshots = slices.DeleteFunc(s.backend.snapshots,
		func(x *csi.Snapshot) bool { return x.GetSnapshotId() == req.GetSnapshotId() })
	return &csi.DeleteSnapshotResponse{}, nil
}

func (s *services) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	var match []*csi.Snapshot
	for _, x := range s.backend.snapshots {
		if (req.GetSnapshotId() == "" || req.GetSnapshotId() == x.GetSnapshotId()) &&
			(req.GetSourceVolumeId() == "" || req.GetSourceVolumeId() == x.GetSourceVolumeId()) {
			match = append(match, x)
		}
	}
	from, to, next, err := page(len(match), req.GetMaxEntries(), req.GetStartingToken())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for _, x := range match[from:to] {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: x})
	}
	return resp, nil
}

// CreateVolumeGroupSnapshot only answers: the snapshots of groups are not kept.
func (s *services) CreateVolumeGroupSnapshot(_ context.Context,
	req *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	g := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: "group of " + req.GetName(), CreationTime: timestamppb.New(time.Now()), ReadyToUse: true,
	}
	for _, id := range req.GetSourceVolumeIds() {
		if err := s.backend.exists(id); err != nil {
			return nil, err
		}
		g.Snapshots = append(g.Snapshots,
			&csi.Snapshot{SnapshotId: g.GetGroupSnapshotId() + " " + id, SourceVolumeId: id, ReadyToUse: true})
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
}

func (s *services) GetVolumeGroupSnapshot(_ context.Context,
	req *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	return &csi.GetVolumeGroupSnapshotResponse{
		GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: req.GetGroupSnapshotId()},
	}, nil
}

func (s *services) DeleteVolumeGroupSnapshot(context.Context,
	*csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// page returns one page of n entries; tokens are offsets.
func page(n int, maxEntries int32, token string) (from, to int, next string, err error) {
	if token != "" {
		if from, err = strconv.Atoi(token); err != nil || from < 0 || from > n {
			return 0, 0, "", status.Errorf(codes.Aborted, "starting_token %q is not valid", token)
		}
	}
	to = n
	if maxEntries > 0 && from+int(maxEntries) < n {
		to = from + int(maxEntries)
		next = strconv.Itoa(to)
	}
	return from, to, next, nil
}
