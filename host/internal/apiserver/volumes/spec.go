package volumes

import (
	"maps"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// volumeSpec returns a volume's definition as the API shows it. keys are the names of its secrets.
func volumeSpec(v claim.Volume, keys []string) *hostv1.VolumeSpec {
	spec := &hostv1.VolumeSpec{
		Id: v.ID, Name: v.Name, Type: volumeType, Namespace: v.Namespace, PluginId: v.PluginID, ExternalId: v.ExternalID,
		CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax, CloneId: v.CloneID, SnapshotId: v.SnapshotID,
		MountOptions: call.ShownMountOptions(v.MountOptions),
		Parameters:   maps.Clone(v.Parameters), Context: maps.Clone(v.Context),
	}
	for _, c := range v.Capabilities {
		spec.Capabilities = append(spec.Capabilities, &hostv1.VolumeCapability{
			AccessMode: string(c.AccessMode), AttachmentMode: string(c.AttachmentMode),
		})
	}
	if len(v.Topology.Required)+len(v.Topology.Preferred) > 0 {
		spec.TopologyRequest = &hostv1.TopologyRequest{
			Required:  call.Each(v.Topology.Required, shownTopology),
			Preferred: call.Each(v.Topology.Preferred, shownTopology),
		}
	}
	for _, key := range keys {
		if spec.Secrets == nil {
			spec.Secrets = map[string]string{}
		}
		spec.Secrets[key] = call.Redacted
	}
	return spec
}

func shownTopology(t claim.Topology) *hostv1.Topology {
	return &hostv1.Topology{Segments: maps.Clone(t.Segments)}
}

func topology(t *hostv1.Topology) claim.Topology {
	return claim.Topology{Segments: maps.Clone(t.GetSegments())}
}
