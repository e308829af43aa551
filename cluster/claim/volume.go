package claim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// VolumeRef names a volume: its id is unique in its namespace.
type VolumeRef struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
}

// String is the id, with the namespace in front of it unless that is "default".
func (r VolumeRef) String() string { return qualified(r.Namespace, r.ID) }

// WorkloadRef names a workload: its id is unique in its namespace.
type WorkloadRef struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
}

// String is the id, with the namespace in front of it unless that is "default".
func (r WorkloadRef) String() string { return qualified(r.Namespace, r.ID) }

// SeenFrom describes the workload in a refusal to one of a namespace, which does not learn others' names.
func (r WorkloadRef) SeenFrom(namespace string) string {
	if r.Namespace != namespace {
		return "a workload of another namespace"
	}
	return fmt.Sprintf("workload %q", r)
}

// DefaultNamespace is the namespace of objects that name none.
const DefaultNamespace = "default"

func qualified(namespace, id string) string {
	if namespace == DefaultNamespace || namespace == "" {
		return id
	}
	return namespace + "/" + id
}

// Capability is an access and an attachment mode that a volume may be claimed with.
type Capability struct {
	AccessMode     AccessMode     `json:"access_mode"`
	AttachmentMode AttachmentMode `json:"attachment_mode"`
}

// MountOptions of a file-system volume. Flags may carry secrets.
type MountOptions struct {
	FSType string   `json:"fs_type,omitempty"`
	Flags  []string `json:"mount_flags,omitempty"`
	Group  string   `json:"volume_mount_group,omitempty"`
}

// Topology is a set of places from which a volume is accessible, as its driver names them.
type Topology struct {
	Segments map[string]string `json:"segments"`
}

// Includes reports whether a node of this topology is one of the places.
func (t Topology) Includes(node map[string]string) bool {
	for key, value := range t.Segments {
		if node[key] != value {
			return false
		}
	}
	return true
}

func (t Topology) String() string {
	var at []string
	for _, key := range slices.Sorted(maps.Keys(t.Segments)) {
		at = append(at, key+"="+t.Segments[key])
	}
	return strings.Join(at, ",")
}

// TopologyRequest restricts (Required) and ranks (Preferred) where a volume may be created.
type TopologyRequest struct {
	Required  []Topology `json:"required,omitempty"`
	Preferred []Topology `json:"preferred,omitempty"`
}

// Definition is what makes a volume: what an operator has written of it (docs/volume-spec.md), with the id and the
// context that its driver gave.
type Definition struct {
	VolumeRef
	Name         string            `json:"name"`
	PluginID     string            `json:"plugin_id"` // the CSI driver's id
	ExternalID   string            `json:"external_id"`
	CapacityMin  int64             `json:"capacity_min,omitempty"` // bytes; 0: no bound
	CapacityMax  int64             `json:"capacity_max,omitempty"` // bytes; 0: no bound
	CloneID      string            `json:"clone_id,omitempty"`
	SnapshotID   string            `json:"snapshot_id,omitempty"`
	Capabilities []Capability      `json:"capabilities"`
	MountOptions MountOptions      `json:"mount_options,omitzero"`
	Topology     TopologyRequest   `json:"topology_request,omitzero"`
	Parameters   map[string]string `json:"parameters,omitempty"`
	Context      map[string]string `json:"context,omitempty"`
}

// Volume is a registered volume as the ledger keeps it. What a query adds to it (provider, driver health, claims)
// is not part of this record. The tags proto say where the API shows a field; "-": nowhere (sdk/convert).
type Volume struct {
	Definition `proto:"spec"`

	// Provider is the name of the driver that has it (CSI spec, GetPluginInfo); empty: it is not known.
	Provider string `json:"provider,omitempty" proto:"-"`
	Capacity int64  `json:"capacity,omitempty"` // bytes, as the driver reported; 0: unknown
	// Grown is true if the driver has expanded it and each node that mounts it must expand its content too (CSI spec,
	// node_expansion_required).
	Grown      bool       `json:"grown,omitempty" proto:"-"`
	Topologies []Topology `json:"topologies,omitempty"` // where it is accessible from, as the driver reported
	Warnings   []string   `json:"warnings,omitempty"`   // what is to be known of its creation
	// MutableParameters are the parameters that were changed since its creation (CSI spec, ControllerModifyVolume).
	MutableParameters map[string]string `json:"mutable_parameters,omitempty"`
	SealedSecrets     []byte            `json:"sealed_secrets,omitempty" proto:"-"` // opaque to the cluster
	// SecretsKey is the id of the key that they are encrypted with; empty: a key that the ledger did not name yet.
	SecretsKey string `json:"secrets_key,omitempty" proto:"-"`

	// AccessMode and AttachmentMode are the first claim's modes; empty while there is no claim.
	AccessMode     AccessMode     `json:"access_mode,omitempty"`
	AttachmentMode AttachmentMode `json:"attachment_mode,omitempty"`

	// Mark is the act that is under way; nil: none.
	Mark *Mark `json:"mark,omitempty" proto:"-"`

	CreateIndex uint64    `json:"create_index,omitempty"`
	ModifyIndex uint64    `json:"modify_index,omitempty"`
	CreatedAt   time.Time `json:"created_at,omitzero"`
	ModifiedAt  time.Time `json:"modified_at,omitzero"`
}

// Modes returns what the volume is in use with; zero while there is no claim.
func (v *Volume) Modes() Capability { return Capability{v.AccessMode, v.AttachmentMode} }

// Supports reports whether the volume may be claimed with these modes.
func (v *Volume) Supports(access AccessMode, attachment AttachmentMode) bool {
	for _, c := range v.Capabilities {
		if c.AccessMode == access && c.AttachmentMode == attachment {
			return true
		}
	}
	return false
}

// CheckProvider checks that a driver is the one that has the volume. Another one under the same id would answer that it
// has deleted or detached what it does not know. The error is ErrUnreachable.
func (v *Volume) CheckProvider(provider string) error {
	if v.Provider == "" || provider == "" || v.Provider == provider {
		return nil
	}
	return fmt.Errorf("%w: driver %q is %q there, and volume %q is of %q: run that one under this id; if it was renamed, "+
		"register the volume again (pannier volume register)", ErrUnreachable, v.PluginID, provider, v.VolumeRef, v.Provider)
}

// CheckReachable checks that the volume is accessible from a node whose driver reported this topology (CSI spec,
// Volume.accessible_topology). A volume without topologies is accessible from everywhere, and a node whose driver
// reported none can reach every volume. The error is ErrUnreachable and names the segments.
func (v *Volume) CheckReachable(node string, topology map[string]string) error {
	if len(v.Topologies) == 0 || len(topology) == 0 {
		return nil
	}
	var where, has []string
	for _, t := range v.Topologies {
		differs := slices.DeleteFunc(slices.Sorted(maps.Keys(t.Segments)),
			func(key string) bool { return topology[key] == t.Segments[key] })
		if len(differs) == 0 {
			return nil
		}
		var at []string
		for _, key := range differs {
			at = append(at, key+"="+t.Segments[key])
			if of, ok := topology[key]; ok {
				has = append(has, key+"="+of)
			} else {
				has = append(has, "no "+key)
			}
		}
		where = append(where, strings.Join(at, ","))
	}
	slices.Sort(has)
	return fmt.Errorf("%w: volume %q is in %s, node %q has %s: use it on a node that pannier volume status %s lists",
		ErrUnreachable, v.VolumeRef, strings.Join(where, " or in "), node, strings.Join(slices.Compact(has), ","), v.ID)
}
