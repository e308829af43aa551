package storage

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// For each message of the protocol, xTo converts the Go type to it and xFrom converts it back. An absent message
// becomes the zero value, and empty lists and maps become nil.

// each converts a list.
func each[A, B any](in []A, convert func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}

// milliseconds rounds up: a small duration must not become zero, which means the default.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// entries limits the size of a page to the protocol's range.
func entries(n int) int32 {
	return int32(min(n, math.MaxInt32))
}

func driverTo(d Driver) *storagev1.Driver {
	return &storagev1.Driver{Id: d.ID, Endpoint: d.Endpoint}
}

func driverFrom(m *storagev1.Driver) Driver {
	return Driver{ID: m.GetId(), Endpoint: m.GetEndpoint()}
}

func volumeTo(v Volume) *storagev1.Volume {
	return &storagev1.Volume{
		Name:       v.Name,
		ExternalId: v.ExternalID,
		Context:    v.Context,
		Secrets:    v.Secrets,
		Capability: capabilityTo(v.Capability),
	}
}

func volumeFrom(m *storagev1.Volume) Volume {
	return Volume{
		Name:       m.GetName(),
		ExternalID: m.GetExternalId(),
		Context:    m.GetContext(),
		Secrets:    m.GetSecrets(),
		Capability: capabilityFrom(m.GetCapability()),
	}
}

func capabilityTo(c Capability) *storagev1.Capability {
	return &storagev1.Capability{
		AccessMode:       accessModes.to(c.AccessMode),
		AttachmentMode:   attachmentModes.to(c.AttachmentMode),
		FsType:           c.FSType,
		MountFlags:       c.MountFlags,
		VolumeMountGroup: c.VolumeMountGroup,
	}
}

func capabilityFrom(m *storagev1.Capability) Capability {
	return Capability{
		AccessMode:       accessModes.from(m.GetAccessMode()),
		AttachmentMode:   attachmentModes.from(m.GetAttachmentMode()),
		FSType:           m.GetFsType(),
		MountFlags:       m.GetMountFlags(),
		VolumeMountGroup: m.GetVolumeMountGroup(),
	}
}

func topologyTo(t Topology) *storagev1.Topology {
	return &storagev1.Topology{Segments: t}
}

func topologyFrom(m *storagev1.Topology) Topology {
	return m.GetSegments()
}

func requirementTo(r TopologyRequirement) *storagev1.TopologyRequirement {
	if len(r.Requisite) == 0 && len(r.Preferred) == 0 {
		return nil
	}
	return &storagev1.TopologyRequirement{
		Requisite: each(r.Requisite, topologyTo),
		Preferred: each(r.Preferred, topologyTo),
	}
}

func requirementFrom(m *storagev1.TopologyRequirement) TopologyRequirement {
	return TopologyRequirement{
		Requisite: each(m.GetRequisite(), topologyFrom),
		Preferred: each(m.GetPreferred(), topologyFrom),
	}
}

func fingerprintTo(f Fingerprint) *storagev1.FingerprintResponse {
	return &storagev1.FingerprintResponse{
		Healthy:    f.Healthy,
		Message:    f.Message,
		Provider:   f.Provider,
		Version:    f.Version,
		Controller: controllerTo(f.Controller),
		Node:       nodeTo(f.Node),
	}
}

func fingerprintFrom(m *storagev1.FingerprintResponse) Fingerprint {
	return Fingerprint{
		Healthy:    m.GetHealthy(),
		Message:    m.GetMessage(),
		Provider:   m.GetProvider(),
		Version:    m.GetVersion(),
		Controller: controllerFrom(m.GetController()),
		Node:       nodeFrom(m.GetNode()),
	}
}

func controllerTo(c *ControllerCapabilities) *storagev1.ControllerCapabilities {
	if c == nil {
		return nil
	}
	return &storagev1.ControllerCapabilities{
		CreateDelete:          c.CreateDelete,
		AttachDetach:          c.AttachDetach,
		AttachReadOnly:        c.AttachReadOnly,
		ListVolumes:           c.ListVolumes,
		GetCapacity:           c.GetCapacity,
		CreateDeleteSnapshot:  c.CreateDeleteSnapshot,
		ListSnapshots:         c.ListSnapshots,
		Clone:                 c.Clone,
		Expand:                c.Expand,
		OnlineExpand:          c.OnlineExpand,
		VolumeCondition:       c.VolumeCondition,
		SingleNodeMultiWriter: c.SingleNodeMultiWriter,
		Topology:              c.Topology,
	}
}

func controllerFrom(m *storagev1.ControllerCapabilities) *ControllerCapabilities {
	if m == nil {
		return nil
	}
	return &ControllerCapabilities{
		CreateDelete:          m.GetCreateDelete(),
		AttachDetach:          m.GetAttachDetach(),
		AttachReadOnly:        m.GetAttachReadOnly(),
		ListVolumes:           m.GetListVolumes(),
		GetCapacity:           m.GetGetCapacity(),
		CreateDeleteSnapshot:  m.GetCreateDeleteSnapshot(),
		ListSnapshots:         m.GetListSnapshots(),
		Clone:                 m.GetClone(),
		Expand:                m.GetExpand(),
		OnlineExpand:          m.GetOnlineExpand(),
		VolumeCondition:       m.GetVolumeCondition(),
		SingleNodeMultiWriter: m.GetSingleNodeMultiWriter(),
		Topology:              m.GetTopology(),
	}
}

func nodeTo(n *NodeCapabilities) *storagev1.NodeCapabilities {
	if n == nil {
		return nil
	}
	m := &storagev1.NodeCapabilities{
		NodeId:                n.NodeID,
		MaxVolumes:            n.MaxVolumes,
		StageUnstage:          n.StageUnstage,
		VolumeStats:           n.VolumeStats,
		Expand:                n.Expand,
		VolumeCondition:       n.VolumeCondition,
		SingleNodeMultiWriter: n.SingleNodeMultiWriter,
		VolumeMountGroup:      n.VolumeMountGroup,
	}
	if len(n.AccessibleTopology) > 0 {
		m.AccessibleTopology = topologyTo(n.AccessibleTopology)
	}
	return m
}

func nodeFrom(m *storagev1.NodeCapabilities) *NodeCapabilities {
	if m == nil {
		return nil
	}
	return &NodeCapabilities{
		NodeID:                m.GetNodeId(),
		MaxVolumes:            m.GetMaxVolumes(),
		AccessibleTopology:    topologyFrom(m.GetAccessibleTopology()),
		StageUnstage:          m.GetStageUnstage(),
		VolumeStats:           m.GetVolumeStats(),
		Expand:                m.GetExpand(),
		VolumeCondition:       m.GetVolumeCondition(),
		SingleNodeMultiWriter: m.GetSingleNodeMultiWriter(),
		VolumeMountGroup:      m.GetVolumeMountGroup(),
	}
}

func listedTo(v ListedVolume) *storagev1.ListedVolume {
	return &storagev1.ListedVolume{
		ExternalId:       v.ExternalID,
		Capacity:         v.Capacity,
		Context:          v.Context,
		PublishedNodeIds: v.PublishedNodeIDs,
		Condition:        conditionTo(v.Condition),
		SnapshotId:       v.SnapshotID,
		CloneId:          v.CloneID,
	}
}

func listedFrom(m *storagev1.ListedVolume) ListedVolume {
	return ListedVolume{
		ExternalID:       m.GetExternalId(),
		Capacity:         m.GetCapacity(),
		Context:          m.GetContext(),
		PublishedNodeIDs: m.GetPublishedNodeIds(),
		Condition:        conditionFrom(m.GetCondition()),
		SnapshotID:       m.GetSnapshotId(),
		CloneID:          m.GetCloneId(),
	}
}

func conditionTo(c *Condition) *storagev1.VolumeCondition {
	if c == nil {
		return nil
	}
	return &storagev1.VolumeCondition{Abnormal: c.Abnormal, Message: c.Message}
}

func conditionFrom(m *storagev1.VolumeCondition) *Condition {
	if m == nil {
		return nil
	}
	return &Condition{Abnormal: m.GetAbnormal(), Message: m.GetMessage()}
}

func snapshotTo(s Snapshot) *storagev1.Snapshot {
	m := &storagev1.Snapshot{
		SnapshotId:       s.ID,
		VolumeExternalId: s.VolumeExternalID,
		Size:             s.Size,
		Ready:            s.Ready,
		GroupId:          s.GroupID,
	}
	if !s.CreatedAt.IsZero() {
		m.CreatedAt = timestamppb.New(s.CreatedAt)
	}
	return m
}

func snapshotFrom(m *storagev1.Snapshot) Snapshot {
	s := Snapshot{
		ID:               m.GetSnapshotId(),
		VolumeExternalID: m.GetVolumeExternalId(),
		Size:             m.GetSize(),
		Ready:            m.GetReady(),
		GroupID:          m.GetGroupId(),
	}
	if m.GetCreatedAt() != nil {
		s.CreatedAt = m.GetCreatedAt().AsTime()
	}
	return s
}

func groupTo(g GroupSnapshot) *storagev1.GroupSnapshot {
	m := &storagev1.GroupSnapshot{GroupId: g.ID, Snapshots: each(g.Snapshots, snapshotTo), Ready: g.Ready}
	if !g.CreatedAt.IsZero() {
		m.CreatedAt = timestamppb.New(g.CreatedAt)
	}
	return m
}

func groupFrom(m *storagev1.GroupSnapshot) GroupSnapshot {
	g := GroupSnapshot{ID: m.GetGroupId(), Snapshots: each(m.GetSnapshots(), snapshotFrom), Ready: m.GetReady()}
	if m.GetCreatedAt() != nil {
		g.CreatedAt = m.GetCreatedAt().AsTime()
	}
	return g
}

func usageTo(u Usage) *storagev1.Usage {
	return &storagev1.Usage{Unit: units.to(u.Unit), Available: u.Available, Total: u.Total, Used: u.Used}
}

func usageFrom(m *storagev1.Usage) Usage {
	return Usage{Unit: units.from(m.GetUnit()), Available: m.GetAvailable(), Total: m.GetTotal(), Used: m.GetUsed()}
}

// names maps the Go strings of an enum to the protocol's values. A value that only one side knows becomes the
// unspecified one, "" in Go, which both sides refuse.
type names[S ~string, E ~int32] map[S]E

func (n names[S, E]) to(s S) E { return n[s] }

func (n names[S, E]) from(e E) S {
	for s, v := range n {
		if v == e {
			return s
		}
	}
	return ""
}

var accessModes = names[AccessMode, storagev1.AccessMode]{
	SingleNodeReaderOnly:   storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_READER_ONLY,
	SingleNodeWriter:       storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_WRITER,
	SingleNodeSingleWriter: storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_SINGLE_WRITER,
	SingleNodeMultiWriter:  storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_MULTI_WRITER,
	MultiNodeReaderOnly:    storagev1.AccessMode_ACCESS_MODE_MULTI_NODE_READER_ONLY,
	MultiNodeSingleWriter:  storagev1.AccessMode_ACCESS_MODE_MULTI_NODE_SINGLE_WRITER,
	MultiNodeMultiWriter:   storagev1.AccessMode_ACCESS_MODE_MULTI_NODE_MULTI_WRITER,
}

var attachmentModes = names[AttachmentMode, storagev1.AttachmentMode]{
	FileSystem:  storagev1.AttachmentMode_ATTACHMENT_MODE_FILE_SYSTEM,
	BlockDevice: storagev1.AttachmentMode_ATTACHMENT_MODE_BLOCK_DEVICE,
}

var units = names[Unit, storagev1.Usage_Unit]{
	Bytes:  storagev1.Usage_UNIT_BYTES,
	Inodes: storagev1.Usage_UNIT_INODES,
}
