// Package specs has what an operator requests of a workload, and the rules of it. It is small: the reader of files uses
// it in the command line, and the manager of workloads in the agent.
package specs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/convert"
	"github.com/pannier/pannier/sdk/service"
)

// Spec is what an operator requests: what a workload uses, and what it runs.
type Spec struct {
	claim.WorkloadRef
	Volumes  []VolumeRequest   `json:"volumes,omitempty"`
	Exec     *Exec             `json:"exec,omitempty"`
	Services []service.Service `json:"services,omitempty" proto:"-"` // which has its own conversion
	Ports    []Port            `json:"ports,omitempty"`
	// User owns the workload's secrets: a name or a number; empty: the user of Exec, or root.
	User string `json:"user,omitempty"`
	// Canary gives the services their canary tags and meta.
	Canary   bool      `json:"canary,omitempty"`
	Sidecars []Sidecar `json:"sidecars,omitempty"`
	// Devices that this workload has to itself while it runs.
	Devices []DeviceRequest `json:"devices,omitempty"`
	// After are the workloads that must have left nothing, on whichever node they ran, before this one takes anything.
	// Those in Replaces are also asked to stop.
	After    []claim.WorkloadRef `json:"after,omitempty" proto:"-"`
	Replaces []claim.WorkloadRef `json:"replaces,omitempty" proto:"-"`
	// Units are the systemd services that get the workload's secrets as credentials.
	Units []string `json:"units,omitempty"`
	// ShutdownDelay is how long a stop waits after the services have left Consul's catalog, such as "5s"; empty: see
	// Delay.
	ShutdownDelay string `json:"shutdown_delay,omitempty"`
}

// VolumeRequest asks for one volume at one destination. A workload may request a volume more than
// once, with other mount options.
type VolumeRequest struct {
	Name           string               `json:"name"`                 // unique in the workload
	Source         string               `json:"source,omitempty"`     // the volume's id, in the workload's namespace
	Driver         string               `json:"driver,omitempty"`     // makes the volume, see Ephemeral; instead of Source
	Attributes     map[string]string    `json:"attributes,omitempty"` // of an ephemeral volume, for the driver
	ReadOnly       bool                 `json:"read_only,omitempty"`
	AccessMode     claim.AccessMode     `json:"access_mode,omitempty"`     // may be empty where the volume has one
	AttachmentMode claim.AttachmentMode `json:"attachment_mode,omitempty"` // may be empty where the volume has one
	MountOptions   claim.MountOptions   `json:"mount_options"`             // replace the volume's, field by field
	Destination    string               `json:"destination,omitempty"`     // absolute, in the workload's mount namespace
}

// Ephemeral reports whether the driver makes the volume for the workload, when it publishes it. Such a volume is gone
// when it is unpublished. It is neither attached nor staged, the ledger knows nothing of it, and nobody can claim it:
// no other workload or node can name it (Kubernetes, "CSI ephemeral inline volumes").
func (r VolumeRequest) Ephemeral() bool { return r.Driver != "" }

// DeviceRequest asks for devices of this node.
type DeviceRequest struct {
	Name  string `json:"name"` // TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME; unique in the workload
	Count int    `json:"count"`
}

// Port is a port of the node that the workload listens on.
type Port struct {
	Label  string `json:"label"`            // unique in the workload
	Static int    `json:"static,omitempty"` // 0: the node picks a free one
}

// Sidecar is a program that runs beside the workload's own. Whatever runs the workload runs it too:
// pannier workload run, systemd or Docker.
type Sidecar struct {
	Service string            `json:"service,omitempty"` // whose proxy it is; empty: the only one that has a proxy
	Command []string          `json:"command"`           // with variables such as ${bootstrap}
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"` // empty: the workload's
}

// Exec is the program of a workload that Pannier runs.
type Exec struct {
	Command string            `json:"command"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	// KillSignal asks the program to end, and KillTimeout later it is killed; see process.Ending.
	KillSignal  string `json:"kill_signal,omitempty"`
	KillTimeout string `json:"kill_timeout,omitempty"`
}

// meshDelay is how long the proxies of other services have to see that one has left the catalog.
const meshDelay = 3 * time.Second

// Delay is how long a stop waits between the end of the services' registrations and the stop of the program. The
// specification is valid.
func (s *Spec) Delay() time.Duration {
	if d, err := time.ParseDuration(s.ShutdownDelay); err == nil {
		return d
	}
	if slices.ContainsFunc(s.Services, func(v service.Service) bool { return v.Connect != nil && !v.IdentityOnly }) {
		return meshDelay
	}
	return 0
}

// Of converts a message, but for its services. Names of workloads without a namespace are in the spec's. Empty lists
// and maps become nil, as in specs from the journal, since the two are compared.
func Of(m *hostv1.WorkloadSpec) Spec {
	s := convert.From[Spec](m)
	s.Namespace = cmp.Or(s.Namespace, claim.DefaultNamespace)
	refs := func(names []string) (all []claim.WorkloadRef) {
		for _, name := range names {
			ref := claim.WorkloadRef{Namespace: s.Namespace, ID: name}
			if namespace, id, qualified := strings.Cut(name, "/"); qualified {
				ref = claim.WorkloadRef{Namespace: namespace, ID: id}
			}
			all = append(all, ref)
		}
		return all
	}
	s.After, s.Replaces = refs(m.GetAfter()), refs(m.GetReplaces())
	return s
}

// Awaited are all that the workload waits for.
func (s *Spec) Awaited() []claim.WorkloadRef { return slices.Concat(s.After, s.Replaces) }

// Equal reports whether two specifications have the same encoding in the journal, in which an empty
// list and none are the same.
func (s Spec) Equal(o Spec) bool {
	a, errA := json.Marshal(s)
	b, errB := json.Marshal(o)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// UID is the id of the user that owns the workload's secrets. A number need not be in the system's user database.
func (s *Spec) UID() (int, error) {
	name := s.User
	if name == "" && s.Exec != nil {
		name = s.Exec.User
	}
	if name == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("user %q, the owner of its secrets: %w", name, err)
	}
	return strconv.Atoi(u.Uid)
}
