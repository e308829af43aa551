package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/service"
)

// Spec is what an operator requests: what a workload uses, and what it runs.
type Spec struct {
	claim.WorkloadRef
	Volumes  []volumesteps.Request `json:"volumes,omitempty"`
	Exec     *Exec                 `json:"exec,omitempty"`
	Services []service.Service     `json:"services,omitempty" proto:"-"` // which has its own conversion
	Ports    []Port                `json:"ports,omitempty"`
	// User owns the workload's secrets: a name or a number; empty: the user of Exec, or root.
	User string `json:"user,omitempty"`
	// Canary gives the services their canary tags and meta.
	Canary   bool      `json:"canary,omitempty"`
	Sidecars []Sidecar `json:"sidecars,omitempty"`
	// Devices that this workload has to itself while it runs.
	Devices []DeviceRequest `json:"devices,omitempty"`
	// After are the workloads of which nothing may be left, on whichever node they ran, before this
	// one takes anything. Those in Replaces are also asked to stop.
	After    []claim.WorkloadRef `json:"after,omitempty" proto:"-"`
	Replaces []claim.WorkloadRef `json:"replaces,omitempty" proto:"-"`
	// Units are the systemd services that get the workload's secrets as credentials.
	Units []string `json:"units,omitempty"`
}

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
}

// ErrInvalid is returned for a specification that can never be started.
var ErrInvalid = errcode.InvalidArgument.New("invalid workload")

const (
	// maxVolumes bounds the volume requests of a workload: the ledger takes no more
	// claims of one.
	maxVolumes = 128
	// maxServices bounds the services of a workload: the ledger takes no more tokens of one.
	maxServices = 64
	// maxDevices bounds the count of one request: a plugin has no more devices.
	maxDevices = device.MaxDevices
	// maxAfter bounds the workloads that one waits for: the ledger takes no more.
	maxAfter = 32
	// maxUnits bounds the units that get a workload's secrets.
	maxUnits = 32
	// maxAttributes bounds the attributes of an ephemeral volume, in bytes: with what the agent adds, a driver takes 4 KiB
	// (CSI spec, "Size Limits").
	maxAttributes = 3 << 10
	// maxSpec bounds a specification, in bytes of JSON: each step writes it to the journal again.
	maxSpec = 128 << 10
)

// Validate checks all that can be known without the ledger and returns every fault. The CLI reports
// the same faults with file and line.
func (s *Spec) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := claim.CheckID(s.ID); err != nil {
		bad("id: %w", err)
	}
	if err := claim.CheckID(s.Namespace); err != nil {
		bad("namespace: %w", err)
	}
	if len(s.Volumes) > maxVolumes {
		bad("it asks for %d volumes, %d are allowed", len(s.Volumes), maxVolumes)
	}
	if raw, err := json.Marshal(s); err != nil || len(raw) > maxSpec {
		return fmt.Errorf("%w %q: it has %d bytes, %d are allowed", ErrInvalid, s.ID, len(raw), maxSpec)
	}
	s.validateAwaited(bad)
	names, destinations := map[string]bool{}, map[string]string{}
	for _, v := range s.Volumes {
		if err := claim.CheckID(v.Name); err != nil {
			bad("volume %q: %w", v.Name, err)
		}
		if names[v.Name] {
			bad("volume %q is there twice", v.Name)
		}
		names[v.Name] = true
		if v.Ephemeral() {
			validateEphemeral(v, bad)
		} else if err := claim.CheckVolumeID(v.Source); err != nil {
			bad("volume %q: source: %w", v.Name, err)
		} else if len(v.Attributes) > 0 {
			bad("volume %q: attributes are those of an ephemeral volume: name its driver instead of a source", v.Name)
		}
		if v.AccessMode != "" && !slices.Contains(claim.AccessModes, v.AccessMode) {
			bad("volume %q: unknown access_mode %q, want one of %q", v.Name, v.AccessMode, claim.AccessModes)
		}
		if v.AttachmentMode != "" && !slices.Contains(claim.AttachmentModes, v.AttachmentMode) {
			bad("volume %q: unknown attachment_mode %q, want one of %q", v.Name, v.AttachmentMode, claim.AttachmentModes)
		}
		if d := v.Destination; d != "" {
			if !filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/" {
				bad("volume %q: destination %q must be an absolute, clean path below /", v.Name, d)
			} else if strings.ContainsFunc(d, unicode.IsControl) { // it is written to lines for systemd and Docker
				bad("volume %q: destination %q must not have control characters", v.Name, d)
			} else if other, ok := destinations[d]; ok {
				bad("volumes %q and %q have one destination, %s", other, v.Name, d)
			}
			destinations[d] = v.Name
		}
	}
	s.validateServices(bad)
	s.validateDevices(bad)
	s.validateUnits(bad)
	if s.Exec != nil && s.Exec.Command == "" {
		bad("exec: command is missing")
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w %q: %w", ErrInvalid, s.ID, errors.Join(errs...))
	}
	return nil
}

// validateEphemeral checks a request for a volume that a driver makes for the workload.
func validateEphemeral(v volumesteps.Request, bad func(format string, args ...any)) {
	if err := claim.CheckID(v.Driver); err != nil {
		bad("volume %q: driver: %w", v.Name, err)
	}
	if v.Source != "" {
		bad("volume %q: it has a source, a volume that is registered, and a driver, which makes one for the workload: leave one "+
			"out", v.Name)
	}
	if v.AccessMode != "" && v.AccessMode != claim.SingleNodeWriter {
		bad("volume %q: a volume that a driver makes for the workload has access_mode %q: leave it out", v.Name,
			claim.SingleNodeWriter)
	}
	if v.AttachmentMode != "" && v.AttachmentMode != claim.FileSystem {
		bad("volume %q: a volume that a driver makes for the workload has attachment_mode %q: leave it out", v.Name,
			claim.FileSystem)
	}
	size := 0
	for key, value := range v.Attributes {
		size += len(key) + len(value)
		if strings.HasPrefix(key, volumesteps.ReservedAttributes) {
			bad("volume %q: attributes: %q is set by the agent: leave it out", v.Name, key)
		}
	}
	if size > maxAttributes {
		bad("volume %q: its attributes have %d bytes, %d are allowed", v.Name, size, maxAttributes)
	}
}

// validateUnits checks the names of services of systemd.
func (s *Spec) validateUnits(bad func(format string, args ...any)) {
	if len(s.Units) > maxUnits {
		bad("it names %d units, %d are allowed", len(s.Units), maxUnits)
	}
	for n, unit := range s.Units {
		if !owner.IsUnit(unit) {
			bad("units: %q is not the name of a systemd service, such as web.service", unit)
		} else if slices.Contains(s.Units[:n], unit) {
			bad("units: %q is there twice", unit)
		}
	}
}

// validateDevices checks the requests for devices.
func (s *Spec) validateDevices(bad func(format string, args ...any)) {
	names := map[string]bool{}
	for _, d := range s.Devices {
		if err := devices.CheckName(d.Name); err != nil {
			bad("device: %w", err)
		}
		if names[d.Name] {
			bad("device %q is there twice; count says how many are needed", d.Name)
		}
		names[d.Name] = true
		if d.Count < 1 || d.Count > maxDevices {
			bad("device %q: count %d must be from 1 to %d", d.Name, d.Count, maxDevices)
		}
	}
}

// validateServices checks ports, services and sidecars.
func (s *Spec) validateServices(bad func(format string, args ...any)) {
	labels, numbers := map[string]bool{}, map[int]string{}
	for _, p := range s.Ports {
		if err := service.CheckLabel(p.Label); err != nil {
			bad("port %q: %w", p.Label, err)
		}
		if labels[p.Label] {
			bad("port %q is there twice", p.Label)
		}
		labels[p.Label] = true
		switch other, taken := numbers[p.Static]; {
		case p.Static == 0:
		case p.Static < 0 || p.Static > 65535:
			bad("port %q: static %d is no port", p.Label, p.Static)
		case taken:
			bad("ports %q and %q have one number, %d", other, p.Label, p.Static)
		default:
			numbers[p.Static] = p.Label
		}
	}
	if len(s.Services) > maxServices {
		bad("it has %d services, %d are allowed", len(s.Services), maxServices)
	}
	for _, p := range service.Validate(s.Services, labels) {
		bad("%w", p)
	}
	var proxied []string
	for n := range s.Services {
		if s.Services[n].Proxied() {
			proxied = append(proxied, s.Services[n].Name)
		}
	}
	for n, c := range s.Sidecars {
		if len(c.Command) == 0 || c.Command[0] == "" {
			bad("sidecar %d: command is missing", n+1)
		}
		switch {
		case c.Service == "" && len(proxied) != 1:
			bad("sidecar %d: service must say whose it is: %d services have a proxy", n+1, len(proxied))
		case c.Service != "" && !slices.Contains(proxied, c.Service):
			bad("sidecar %d: no service %q has a proxy; those that have: %q", n+1, c.Service, proxied)
		}
	}
}

// awaited are all that the workload waits for.
func (s *Spec) awaited() []claim.WorkloadRef { return slices.Concat(s.After, s.Replaces) }

func (s *Spec) validateAwaited(bad func(format string, args ...any)) {
	all := s.awaited()
	if len(all) > maxAfter {
		bad("it waits for %d workloads, %d are allowed", len(all), maxAfter)
	}
	for n, ref := range all {
		what := "after"
		if n >= len(s.After) {
			what = "replaces"
		}
		switch err := ref.Validate(); {
		case err != nil:
			bad("%s: %w", what, err)
		case ref == s.WorkloadRef:
			bad("%s: it cannot wait for itself", what)
		case slices.Contains(all[:n], ref):
			bad("%s: workload %q is there twice", what, ref)
		}
	}
}

// equal reports whether two specifications have the same encoding in the journal, in which an empty
// list and none are the same.
func (s Spec) equal(o Spec) bool {
	a, errA := json.Marshal(s)
	b, errB := json.Marshal(o)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// uid is that of the user that owns the workload's secrets. A number need not be in the system's user
// database.
func (s *Spec) uid() (int, error) {
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
