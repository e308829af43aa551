package specs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/service"
)

// ErrInvalid is returned for a specification that can never be started.
var ErrInvalid = errcode.InvalidArgument.New("invalid workload")

const (
	// maxVolumes bounds the volume requests of a workload: the ledger takes no more
	// claims of one.
	maxVolumes = 128
	// maxServices bounds the services of a workload: the ledger takes no more tokens of one.
	maxServices = 64
	// maxDevices is device.MaxDevices: a plugin has no more devices. That package is left out of the client, since it
	// brings gRPC along.
	maxDevices = 256
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

// Validate returns all problems as one error.
func (s *Spec) Validate() error {
	var errs []error
	for _, p := range s.Problems() {
		errs = append(errs, p)
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w %q: %w", ErrInvalid, s.ID, errors.Join(errs...))
	}
	return nil
}

// Problems checks all that can be known without the ledger and the node, and returns every fault. A pointer is that of
// the field in the specification, such as "/volumes/0/source", or of an element of a list.
func (s *Spec) Problems() []*service.Problem {
	c := &checker{}
	if raw, err := json.Marshal(s); err != nil || len(raw) > maxSpec {
		c.fail(block{path: "the specification"}, "has %d bytes, %d are allowed", len(raw), maxSpec)
		return c.problems
	}
	var root block
	c.id(root.in("id"), claim.CheckID(s.ID))
	c.id(root.in("namespace"), claim.CheckID(s.Namespace))
	c.atMost(root.in("volumes"), len(s.Volumes), maxVolumes)
	c.atMost(root.in("services"), len(s.Services), maxServices)
	c.atMost(root.in("units"), len(s.Units), maxUnits)
	c.atMost(root.in("after"), len(s.Awaited()), maxAfter)
	c.awaited(s)
	c.volumes(s.Volumes)
	c.devices(s.Devices)
	for n, unit := range s.Units {
		if !owner.IsUnit(unit) {
			c.fail(root.in("units"), "%q is not the name of a systemd service, such as web.service", unit)
		} else if slices.Contains(s.Units[:n], unit) {
			c.fail(root.in("units"), "%q is there twice", unit)
		}
	}
	c.services(s.Services, c.ports(s.Ports))
	if s.Exec != nil {
		exec := block{"/exec", "exec"}
		if strings.TrimSpace(s.Exec.Command) == "" {
			c.fail(exec.in("command"), "is required")
		}
		c.env(exec, s.Exec.Env)
		c.duration(exec.in("kill_timeout"), s.Exec.KillTimeout)
		if name := s.Exec.KillSignal; name != "" && unix.SignalNum(name) == 0 {
			c.fail(exec.in("kill_signal"), "%q is no signal, such as SIGINT", name)
		}
	}
	c.duration(root.in("shutdown_delay"), s.ShutdownDelay)
	c.sidecars(s)
	return c.problems
}

// block is where a field is: its JSON pointer, and its name for people.
type block struct{ pointer, path string }

func (b block) in(field string) block {
	if b.path == "" {
		return block{"/" + field, field}
	}
	return block{b.pointer + "/" + field, b.path + ": " + field}
}

// checker collects problems.
type checker struct{ problems []*service.Problem }

func (c *checker) fail(at block, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.problems = append(c.problems, &service.Problem{Pointer: at.pointer, Path: at.path, Text: text})
}

func (c *checker) id(at block, err error) {
	if err != nil {
		c.fail(at, "%v", err)
	}
}

func (c *checker) duration(at block, text string) {
	if d, err := time.ParseDuration(text); text != "" && (err != nil || d < 0) {
		c.fail(at, "%q is no duration, such as 5s", text)
	}
}

func (c *checker) atMost(at block, n, most int) {
	if n > most {
		c.fail(at, "there are %d, %d are allowed", n, most)
	}
}

func (c *checker) awaited(s *Spec) {
	all := s.Awaited()
	for n, ref := range all {
		at := block{"/after", "after"}
		if n >= len(s.After) {
			at = block{"/replaces", "replaces"}
		}
		switch err := cmp.Or(claim.CheckID(ref.Namespace), claim.CheckID(ref.ID)); {
		case err != nil:
			c.fail(at, "%q is neither ID nor NAMESPACE/ID of a workload: %v", ref, err)
		case ref == s.WorkloadRef:
			c.fail(at, "%q is this workload: it cannot wait for itself", ref)
		case slices.Contains(all[:n], ref):
			c.fail(at, "workload %q is there twice", ref)
		}
	}
}

func (c *checker) volumes(all []VolumeRequest) {
	names, destinations := map[string]bool{}, map[string]string{}
	for n, v := range all {
		at := block{fmt.Sprint("/volumes/", n), fmt.Sprintf("volume %q", v.Name)}
		c.id(at.in("name"), claim.CheckID(v.Name))
		if names[v.Name] {
			c.fail(at, "is there twice; each needs a name of its own")
		}
		names[v.Name] = true
		switch {
		case v.Ephemeral():
			c.ephemeral(at, v)
		case v.Source == "":
			c.fail(at.in("source"), "is required: the id of a volume; or driver, for one that the driver makes for this workload")
		default:
			c.id(at.in("source"), claim.CheckVolumeID(v.Source))
		}
		if !v.Ephemeral() && len(v.Attributes) > 0 {
			c.fail(at.in("attributes"), "are those of a volume that a driver makes for this workload: write driver instead of source")
		}
		mode(c, at.in("access_mode"), v.AccessMode, claim.AccessModes)
		mode(c, at.in("attachment_mode"), v.AttachmentMode, claim.AttachmentModes)
		to := at.in("destination")
		switch err := CheckPath(v.Destination); {
		case v.Destination == "":
			c.fail(to, "is required: an absolute path for the workload to find the volume at")
		case err != nil:
			c.fail(to, "%v", err)
		case v.Destination == "/":
			c.fail(to, "must not be /")
		case destinations[v.Destination] != "":
			c.fail(to, "%q is that of volume %q too", v.Destination, destinations[v.Destination])
		default:
			destinations[v.Destination] = v.Name
		}
	}
}

func mode[M ~string](c *checker, at block, mode M, known []M) {
	if mode != "" && !slices.Contains(known, mode) {
		c.fail(at, "%q is not one of %q", mode, known)
	}
}

// CheckPath requires an absolute path without . and .. elements.
func CheckPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%q is not an absolute path", path)
	case path != filepath.Clean(path):
		return fmt.Errorf("%q is not a clean path; write %q", path, filepath.Clean(path))
	case strings.ContainsFunc(path, unicode.IsControl): // it may be printed in lines for systemd and Docker
		return fmt.Errorf("%q has a control character", path)
	}
	return nil
}

// ephemeral checks a request for a volume that a driver makes for the workload.
func (c *checker) ephemeral(at block, v VolumeRequest) {
	c.id(at.in("driver"), claim.CheckID(v.Driver))
	if v.Source != "" {
		c.fail(at.in("source"), "is a volume that is registered, and driver makes one for this workload: leave one out")
	}
	if v.AccessMode != "" && v.AccessMode != claim.SingleNodeWriter {
		c.fail(at.in("access_mode"), "is %q for a volume that a driver makes for this workload: leave it out",
			claim.SingleNodeWriter)
	}
	if v.AttachmentMode != "" && v.AttachmentMode != claim.FileSystem {
		c.fail(at.in("attachment_mode"), "is %q for a volume that a driver makes for this workload: leave it out",
			claim.FileSystem)
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(v.Attributes)) {
		size += len(key) + len(v.Attributes[key])
	}
	if err := claim.CheckKeys(v.Attributes); err != nil {
		c.fail(at.in("attributes"), "%v", err)
	}
	if size > maxAttributes {
		c.fail(at.in("attributes"), "have %d bytes, %d are allowed", size, maxAttributes)
	}
}

func (c *checker) devices(all []DeviceRequest) {
	names := map[string]bool{}
	for n, d := range all {
		at := block{fmt.Sprint("/devices/", n), fmt.Sprintf("device %q", d.Name)}
		if slices.Contains(strings.SplitN(d.Name, "/", 3), "") {
			c.fail(at, "the name must be TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME")
		}
		if names[d.Name] {
			c.fail(at, "is there twice; count says how many are needed")
		}
		names[d.Name] = true
		if d.Count < 1 || d.Count > maxDevices {
			c.fail(at.in("count"), "a whole number from 1 to %d is required, not %d", maxDevices, d.Count)
		}
	}
}

// ports returns the labels.
func (c *checker) ports(all []Port) map[string]bool {
	labels, numbers := map[string]bool{}, map[int]string{}
	for n, p := range all {
		at := block{fmt.Sprint("/ports/", n), fmt.Sprintf("port %q", p.Label)}
		if err := service.CheckLabel(p.Label); err != nil {
			c.fail(at, "%v", err)
		}
		if labels[p.Label] {
			c.fail(at, "is there twice; each needs a label of its own")
		}
		labels[p.Label] = true
		switch other, taken := numbers[p.Static]; {
		case p.Static == 0:
		case p.Static < 0 || p.Static > 65535:
			c.fail(at.in("static"), "a whole number from 1 to 65535 is required, not %d", p.Static)
		case taken:
			c.fail(at.in("static"), "%d is that of port %q too", p.Static, other)
		default:
			numbers[p.Static] = p.Label
		}
	}
	return labels
}

func (c *checker) services(all []service.Service, labels map[string]bool) {
	for _, p := range service.Validate(all, labels) {
		p.Pointer = "/services" + p.Pointer
		c.problems = append(c.problems, p)
	}
}

func (c *checker) env(of block, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			c.fail(of.in("env"), "%q cannot be the name of a variable", name)
		}
	}
}

// sidecars checks the programs beside the workload's own. Each is the proxy of one of the services.
func (c *checker) sidecars(s *Spec) {
	var proxied []string
	for n := range s.Services {
		if s.Services[n].Proxied() {
			proxied = append(proxied, s.Services[n].Name)
		}
	}
	taken := map[string]bool{}
	for n, sidecar := range s.Sidecars {
		at := block{fmt.Sprint("/sidecars/", n), fmt.Sprintf("sidecar %d", n+1)}
		if len(sidecar.Command) == 0 || strings.TrimSpace(sidecar.Command[0]) == "" {
			c.fail(at.in("command"), "is required: a list of the program and its arguments, such as "+
				`["envoy", "-c", "${bootstrap}"]`)
		}
		c.env(at, sidecar.Env)
		name := sidecar.Service
		if name == "" && len(proxied) == 1 {
			name = proxied[0]
		}
		of := at.in("service")
		switch {
		case len(proxied) == 0:
			c.fail(of, "no service of the workload has a proxy; write a connect block with sidecar_service or gateway")
		case name == "":
			c.fail(of, "is required, since several services have a proxy: %s", strings.Join(proxied, ", "))
		case !slices.Contains(proxied, name):
			c.fail(of, "%q is no service with a proxy; these are: %s", name, strings.Join(proxied, ", "))
		case taken[name]:
			c.fail(of, "%q has a sidecar already", name)
		}
		taken[name] = true
	}
}
