package nomad

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// schedulable reports whether a volume of the driver can be claimed somewhere.
func schedulable(v *hostv1.Volume) bool {
	return v.GetNodesHealthy() > 0 && (v.GetControllersExpected() == 0 || v.GetControllersHealthy() > 0)
}

// stubOf is a volume in a list. Its ResourceExhausted is never: what a claim needs is checked when it is taken.
func stubOf(v *hostv1.Volume) *api.CSIVolumeListStub {
	full := volumeOf(v)
	return &api.CSIVolumeListStub{
		ID: full.ID, Namespace: full.Namespace, Name: full.Name, ExternalID: full.ExternalID, Topologies: full.Topologies,
		AccessMode: full.AccessMode, AttachmentMode: full.AttachmentMode,
		CurrentReaders: len(full.ReadAllocs), CurrentWriters: len(full.WriteAllocs),
		Schedulable: full.Schedulable, PluginID: full.PluginID, Provider: full.Provider,
		ControllerRequired: full.ControllerRequired, ControllersHealthy: full.ControllersHealthy,
		ControllersExpected: full.ControllersExpected, NodesHealthy: full.NodesHealthy, NodesExpected: full.NodesExpected,
		CreateIndex: full.CreateIndex, ModifyIndex: full.ModifyIndex,
		CreateTime: full.CreateTime, ModifyTime: full.ModifyTime,
	}
}

// volumeOf is a whole volume. Its modes are those in use.
func volumeOf(v *hostv1.Volume) *api.CSIVolume {
	spec := v.GetSpec()
	shown := &api.CSIVolume{
		ID: spec.GetId(), Name: spec.GetName(), ExternalID: spec.GetExternalId(), Namespace: spec.GetNamespace(),
		Topologies: topologiesOf(v.GetTopologies()), AccessMode: api.CSIVolumeAccessMode(v.GetAccessMode()),
		AttachmentMode: api.CSIVolumeAttachmentMode(v.GetAttachmentMode()), Secrets: spec.GetSecrets(),
		Parameters: spec.GetParameters(), Context: spec.GetContext(), Capacity: v.GetCapacity(),
		RequestedCapacityMin: spec.GetCapacityMin(), RequestedCapacityMax: spec.GetCapacityMax(),
		CloneID: spec.GetCloneId(), SnapshotID: spec.GetSnapshotId(),
		ReadAllocs: map[string]*api.Allocation{}, WriteAllocs: map[string]*api.Allocation{},
		Allocations: []*api.AllocationListStub{}, Schedulable: schedulable(v), PluginID: spec.GetPluginId(),
		Provider: v.GetProvider(), ProviderVersion: v.GetProviderVersion(),
		ControllerRequired: v.GetControllersExpected() > 0,
		ControllersHealthy: int(v.GetControllersHealthy()), ControllersExpected: int(v.GetControllersExpected()),
		NodesHealthy: int(v.GetNodesHealthy()), NodesExpected: int(v.GetNodesExpected()),
		CreateIndex: v.GetCreateIndex(), ModifyIndex: v.GetModifyIndex(),
		CreateTime: nanoseconds(v.GetCreatedAt()), ModifyTime: nanoseconds(v.GetModifiedAt()),
	}
	if r := spec.GetTopologyRequest(); r != nil {
		shown.RequestedTopologies = &api.CSITopologyRequest{
			Required: topologiesOf(r.GetRequired()), Preferred: topologiesOf(r.GetPreferred()),
		}
	}
	if o := spec.GetMountOptions(); o != nil {
		shown.MountOptions = &api.CSIMountOptions{
			FSType: o.GetFsType(), MountFlags: slices.Repeat([]string{redacted}, len(o.GetMountFlags())),
		}
	}
	for _, c := range spec.GetCapabilities() {
		shown.RequestedCapabilities = append(shown.RequestedCapabilities, &api.CSIVolumeCapability{
			AccessMode:     api.CSIVolumeAccessMode(c.GetAccessMode()),
			AttachmentMode: api.CSIVolumeAttachmentMode(c.GetAttachmentMode()),
		})
	}
	for _, c := range v.GetClaims() {
		a := allocationOf(c)
		shown.Allocations = append(shown.Allocations, a)
		if c.GetMode() == modeWrite {
			shown.WriteAllocs[a.ID] = nil
		} else {
			shown.ReadAllocs[a.ID] = nil
		}
	}
	return shown
}

// topologiesOf shows where a volume is; nil: nobody knows, or everywhere.
func topologiesOf(all []*hostv1.Topology) (shown []*api.CSITopology) {
	for _, t := range all {
		shown = append(shown, &api.CSITopology{Segments: t.GetSegments()})
	}
	return shown
}
