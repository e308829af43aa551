package nomad

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// redacted is what secrets and mount flags are shown as, here as in Nomad.
const redacted = "[REDACTED]"

// specOf turns the definition of a volume into Pannier's. id is the path's, and namespace the request's.
func specOf(d *api.CSIVolume, id, namespace string) (*hostv1.VolumeSpec, error) {
	if d.ID != "" && d.ID != id {
		return nil, badRequest("the path names volume %q, and the request volume %q", id, d.ID)
	}
	spec := &hostv1.VolumeSpec{
		Id: id, Name: d.Name, Type: typeCSI, Namespace: cmp.Or(d.Namespace, namespace),
		PluginId: d.PluginID, ExternalId: d.ExternalID,
		CapacityMin: d.RequestedCapacityMin, CapacityMax: d.RequestedCapacityMax,
		CloneId: d.CloneID, SnapshotId: d.SnapshotID,
		Secrets: d.Secrets, Parameters: d.Parameters, Context: d.Context,
	}
	if spec.GetNamespace() == allNamespaces {
		return nil, badRequest("volume %q: the namespace %q is for lists only", id, allNamespaces)
	}
	single := api.CSIVolumeCapability{AccessMode: d.AccessMode, AttachmentMode: d.AttachmentMode}
	listed := single == api.CSIVolumeCapability{}
	if !listed && len(d.RequestedCapabilities) == 0 { // a definition of before Nomad 1.1
		d.RequestedCapabilities = []*api.CSIVolumeCapability{&single}
	}
	for _, c := range d.RequestedCapabilities {
		if c == nil {
			continue
		}
		listed = listed || *c == single
		spec.Capabilities = append(spec.Capabilities,
			&hostv1.VolumeCapability{AccessMode: string(c.AccessMode), AttachmentMode: string(c.AttachmentMode)})
	}
	if !listed {
		return nil, badRequest("volume %q: AccessMode %q and AttachmentMode %q are in none of RequestedCapabilities: leave "+
			"them out, or add them there", id, d.AccessMode, d.AttachmentMode)
	}
	if o := d.MountOptions; o != nil && (o.FSType != "" || len(o.MountFlags) > 0) {
		if slices.ContainsFunc(o.MountFlags, func(f string) bool { return strings.HasSuffix(f, redacted) }) {
			return nil, badRequest("volume %q: a mount flag is %s, as it is shown: give its text", id, redacted)
		}
		spec.MountOptions = &hostv1.MountOptions{FsType: o.FSType, MountFlags: o.MountFlags}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Secrets)) {
		if d.Secrets[key] == redacted {
			return nil, badRequest("volume %q: the secret %q is %s, as it is shown: give its value", id, key, redacted)
		}
	}
	if r := d.RequestedTopologies; r != nil && len(r.Required)+len(r.Preferred) > 0 {
		spec.TopologyRequest = &hostv1.TopologyRequest{
			Required: specTopologies(r.Required), Preferred: specTopologies(r.Preferred),
		}
	}
	return spec, nil
}

func specTopologies(all []*api.CSITopology) (specs []*hostv1.Topology) {
	for _, t := range all {
		if t != nil {
			specs = append(specs, &hostv1.Topology{Segments: t.Segments})
		}
	}
	return specs
}
