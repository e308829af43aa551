package apiserver

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// redacted replaces values that are never shown.
const redacted = "[REDACTED]"

// namespaced is a request that names an object in a namespace.
type namespaced interface {
	GetNamespace() string
	GetId() string
}

// namespaceOr returns the namespace of a request, or the default.
func namespaceOr(namespace string) string {
	if namespace == "" {
		return claim.DefaultNamespace
	}
	return namespace
}

// qualified returns an id as messages show it.
func qualified(namespace, id string) string {
	return claim.VolumeRef{Namespace: namespace, ID: id}.String()
}

// timestamp returns nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// volumeSpec returns a volume's definition as the API shows it. keys are the names of its secrets.
func volumeSpec(v claim.Volume, keys []string) *hostv1.VolumeSpec {
	spec := &hostv1.VolumeSpec{
		Id: v.ID, Name: v.Name, Type: volumeType, Namespace: v.Namespace, PluginId: v.PluginID, ExternalId: v.ExternalID,
		CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax, CloneId: v.CloneID, SnapshotId: v.SnapshotID,
		MountOptions: shownMountOptions(v.MountOptions),
		Parameters:   maps.Clone(v.Parameters), Context: maps.Clone(v.Context),
	}
	for _, c := range v.Capabilities {
		spec.Capabilities = append(spec.Capabilities, &hostv1.VolumeCapability{
			AccessMode: string(c.AccessMode), AttachmentMode: string(c.AttachmentMode),
		})
	}
	if len(v.Topology.Required)+len(v.Topology.Preferred) > 0 {
		spec.TopologyRequest = &hostv1.TopologyRequest{
			Required:  each(v.Topology.Required, shownTopology),
			Preferred: each(v.Topology.Preferred, shownTopology),
		}
	}
	for _, key := range keys {
		if spec.Secrets == nil {
			spec.Secrets = map[string]string{}
		}
		spec.Secrets[key] = redacted
	}
	return spec
}

// shownMountOptions hides the flags, which may contain secrets. It returns nil if no option is set.
func shownMountOptions(o claim.MountOptions) *hostv1.MountOptions {
	if o.FSType == "" && len(o.Flags) == 0 && o.Group == "" {
		return nil
	}
	shown := &hostv1.MountOptions{FsType: o.FSType, VolumeMountGroup: o.Group}
	for range o.Flags {
		shown.MountFlags = append(shown.MountFlags, redacted)
	}
	return shown
}

func mountOptions(o *hostv1.MountOptions) claim.MountOptions {
	return claim.MountOptions{FSType: o.GetFsType(), Flags: notEmpty(o.GetMountFlags()), Group: o.GetVolumeMountGroup()}
}

func shownTopology(t claim.Topology) *hostv1.Topology {
	return &hostv1.Topology{Segments: maps.Clone(t.Segments)}
}

func topology(t *hostv1.Topology) claim.Topology {
	return claim.Topology{Segments: maps.Clone(t.GetSegments())}
}

func shownClaim(c claim.Claim) *hostv1.Claim {
	return &hostv1.Claim{
		Volume: c.Volume.ID, Namespace: c.Volume.Namespace, Workload: c.Workload.ID, Node: c.Node,
		Mode: string(c.Mode), AccessMode: string(c.AccessMode), AttachmentMode: string(c.AttachmentMode),
		State: string(c.State), Index: c.Index,
		TakenAt: timestamp(c.TakenAt), ModifiedAt: timestamp(c.ModifiedAt), ForcedBy: c.ForcedBy,
	}
}

// each converts the elements of a list.
func each[From, To any](list []From, convert func(From) To) (out []To) {
	for _, one := range list {
		out = append(out, convert(one))
	}
	return out
}

// notEmpty returns a copy of a list, or nil if it is empty, as the list would read back from a record.
func notEmpty[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return slices.Clone(list)
}
