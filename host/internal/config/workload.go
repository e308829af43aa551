package config

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/host/internal/system/vars"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
)

var (
	workloadFields = fields{
		attrs: []string{"namespace", "user", "canary", "after", "replaces", "units"}, blocks: []string{"network", "exec", "sidecar"},
		labelled: []string{"volume", "device", "identity"}, named: []string{"service"},
	}
	deviceFields  = fields{attrs: []string{"count"}}
	requestFields = fields{
		attrs:  []string{"source", "driver", "read_only", "access_mode", "attachment_mode", "destination"},
		blocks: []string{"mount_options"}, maps: []string{"attributes"},
		refused: map[string]string{
			"plugin_id":         `write driver = "ID" for a volume that the driver makes for this workload`,
			"parameters":        ofEphemeral,
			"context":           ofEphemeral,
			"volume_attributes": ofEphemeral,
			"secrets":           ofDriver,
			"secrets_from":      ofDriver,
			"ephemeral":         `leave it out: with driver = "ID" the volume is made for this workload`,
			"size":              `write attributes { size = "1GiB" }, if the driver has that attribute`,
		},
	}
)

const (
	ofEphemeral = `write attributes { ... } for a volume that a driver makes for this workload; a registered one has its own`
	ofDriver    = "is not the workload's: write secrets in ephemeral_volumes, in the csi_driver block of the agent, or in the " +
		"spec of a volume that is registered"
)

// ReadWorkload reads a workload spec from a file; "-" reads standard input. The
// error is Problems.
func ReadWorkload(path string) (*hostv1.WorkloadSpec, error) {
	name, src, err := readSpec(path)
	if err != nil {
		return nil, err
	}
	return ParseWorkload(name, src)
}

// ParseWorkload reads a workload spec; problems contain name. The namespace is empty if the spec has none. The error
// is Problems.
func ParseWorkload(name string, src []byte) (*hostv1.WorkloadSpec, error) {
	var problems Problems
	body := parse(name, src, &problems)
	if body == nil {
		return nil, problems.err()
	}
	file := open(body, "", fields{labelled: []string{"workload"}}, nil, &problems)
	blocks := file.content.Blocks.OfType("workload")
	switch {
	case len(blocks) == 0 && len(problems) == 0:
		file.fail("workload", "a workload block with a name is required")
	case len(blocks) > 1:
		problems.add(blocks[1].DefRange, "workload: a second one in this file; write one file for each workload")
	}
	if len(blocks) == 0 {
		return nil, problems.err()
	}
	spec := workloadSpec(file, blocks[0])
	if err := problems.err(); err != nil {
		return nil, err
	}
	return spec, nil
}

func workloadSpec(s *section, block *hcl.Block) *hostv1.WorkloadSpec {
	spec := &hostv1.WorkloadSpec{Id: block.Labels[0]}
	in := s.inner(block, workloadFields)
	if err := claim.CheckID(spec.Id); err != nil {
		s.problems.add(block.DefRange, "%s: id %v", in.path, err)
	}
	if in.str("namespace", &spec.Namespace) {
		in.id("namespace", spec.Namespace)
	}
	seen := map[string]bool{}
	destinations := map[string]string{}
	for _, block := range in.content.Blocks.OfType("volume") {
		spec.Volumes = append(spec.Volumes, volumeRequest(in, block, seen, destinations))
	}
	named := map[string]bool{}
	for _, block := range in.content.Blocks.OfType("device") {
		spec.Devices = append(spec.Devices, deviceRequest(in, block, named))
	}
	in.str("user", &spec.User)
	in.boolean("canary", &spec.Canary)
	others := map[string]bool{}
	readAwaited(in, "after", spec.Id, others, &spec.After)
	readAwaited(in, "replaces", spec.Id, others, &spec.Replaces)
	readUnits(in, &spec.Units)
	spec.Ports = ports(in)
	var labels []string
	for _, port := range spec.Ports {
		labels = append(labels, port.Label)
	}
	given := len(labels)
	services, labels := servicesOf(in, labels)
	for _, label := range labels[given:] {
		spec.Ports = append(spec.Ports, &hostv1.Port{Label: label})
	}
	spec.Services = messages(in, services)
	spec.Exec = program(in, newLater(vars.InPrograms(labels)))
	spec.Sidecars = sidecars(in, newLater(vars.InSidecars(labels)), services)
	return spec
}

// readAwaited reads names of other workloads, ID or NAMESPACE/ID. others are those that were read before.
func readAwaited(s *section, name, own string, others map[string]bool, dst *[]string) {
	s.strings(name, dst)
	for _, ref := range *dst {
		namespace, id, qualified := strings.Cut(ref, "/")
		if !qualified {
			namespace, id = claim.DefaultNamespace, ref
		}
		switch err := errors.Join(claim.CheckID(namespace), claim.CheckID(id)); {
		case err != nil:
			s.fail(name, "%q is neither ID nor NAMESPACE/ID of a workload: %v", ref, err)
		case ref == own:
			s.fail(name, "%q is this workload: it cannot wait for itself", ref)
		case others[ref]:
			s.fail(name, "workload %q is named twice", ref)
		}
		others[ref] = true
	}
}

// readUnits reads the names of services of systemd.
func readUnits(s *section, dst *[]string) {
	s.strings("units", dst)
	for n, unit := range *dst {
		if !owner.IsUnit(unit) {
			s.fail("units", "%q is not the name of a systemd service, such as web.service", unit)
		} else if slices.Contains((*dst)[:n], unit) {
			s.fail("units", "%q is named twice", unit)
		}
	}
}

// maxDevices is device.MaxDevices. That package is left out of the client, since it brings gRPC along.
const maxDevices = 256

// deviceRequest reads one device block. named are those before it.
func deviceRequest(s *section, block *hcl.Block, named map[string]bool) *hostv1.DeviceRequest {
	r := &hostv1.DeviceRequest{Name: block.Labels[0]}
	in := s.inner(block, deviceFields)
	for _, part := range strings.SplitN(r.Name, "/", 3) {
		if part == "" {
			s.problems.add(block.DefRange, "%s: the name must be TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME", in.path)
			break
		}
	}
	if named[r.Name] {
		s.problems.add(block.DefRange, "%s: block given twice; count says how many are needed", in.path)
	}
	named[r.Name] = true
	count := int64(1)
	in.integer("count", 1, maxDevices, &count)
	r.Count = int32(count)
	return r
}

// volumeRequest reads one volume block. destinations are those of the blocks before it.
func volumeRequest(s *section, block *hcl.Block, seen map[string]bool,
	destinations map[string]string,
) *hostv1.VolumeRequest {
	r := &hostv1.VolumeRequest{Name: block.Labels[0]}
	in := s.inner(block, requestFields)
	if err := claim.CheckID(r.Name); err != nil {
		s.problems.add(block.DefRange, "%s: name %v", in.path, err)
	}
	if seen[r.Name] {
		s.problems.add(block.DefRange, "%s: block given twice; each needs a name of its own", in.path)
	}
	seen[r.Name] = true

	in.boolean("read_only", &r.ReadOnly)
	readModes(in, &r.AccessMode, &r.AttachmentMode)
	in.str("source", &r.Source)
	in.str("driver", &r.Driver)
	r.Attributes = in.texts("attributes")
	switch {
	case !in.has("driver") && !in.has("source"):
		in.fail("source", "is required: the id of a volume; or driver, for one that the driver makes for this workload")
	case !in.has("driver"):
		in.volumeID("source", r.Source)
		if r.Attributes != nil {
			in.fail("attributes", "are those of a volume that a driver makes for this workload: write driver instead of source")
		}
	default:
		checkEphemeral(in, r)
	}
	r.MountOptions = mountOptions(in)
	in.str("destination", &r.Destination)
	switch err := checkAbsolute(r.Destination); {
	case r.Destination == "":
		in.fail("destination", "is required: an absolute path for the workload to find the volume at")
	case err != nil:
		in.fail("destination", "%v", err)
	case r.Destination == "/":
		in.fail("destination", "must not be /")
	case destinations[r.Destination] != "":
		in.fail("destination", "%q is that of volume %q too", r.Destination, destinations[r.Destination])
	default:
		destinations[r.Destination] = r.Name
	}
	return r
}

// checkEphemeral checks a request for a volume that a driver makes for the workload.
func checkEphemeral(s *section, r *hostv1.VolumeRequest) {
	s.id("driver", r.Driver)
	if s.has("source") {
		s.fail("source", "is a volume that is registered, and driver makes one for this workload: leave one out")
	}
	if r.AccessMode != "" && r.AccessMode != string(claim.SingleNodeWriter) {
		s.fail("access_mode", "is %q for a volume that a driver makes for this workload: leave it out", claim.SingleNodeWriter)
	}
	if r.AttachmentMode != "" && r.AttachmentMode != string(claim.FileSystem) {
		s.fail("attachment_mode", "is %q for a volume that a driver makes for this workload: leave it out", claim.FileSystem)
	}
	for key := range r.Attributes {
		if strings.HasPrefix(key, "csi.storage.k8s.io/") {
			s.fail("attributes", "%q is set by the agent: leave it out", key)
		}
	}
}

// Nomad's network block. Here workloads use their node's network.
var (
	networkFields = fields{
		attrs: []string{"mode"}, labelled: []string{"port"},
		refused: map[string]string{
			"dns":      "a workload has its node's resolver; leave it out",
			"cni":      "a workload has its node's network; leave it out",
			"hostname": "a workload has its node's name; leave it out",
		},
	}
	portFields = fields{
		attrs: []string{"static"},
		refused: map[string]string{
			"to":               "a workload has its node's network, where a port is one number inside and outside; leave it out",
			"host_network":     "a port is taken on all addresses of the node; leave it out",
			"ignore_collision": "a port is given to one workload of the node only; leave it out",
		},
	}
)

func ports(s *section) []*hostv1.Port {
	block := s.one("network")
	if block == nil {
		return nil
	}
	in := s.inner(block, networkFields)
	var mode string
	if in.str("mode", &mode) && mode != "host" {
		in.fail("mode", `%q is not supported: a workload has its node's network; leave it out, or write mode = "host"`, mode)
	}
	var ports []*hostv1.Port
	labels, numbers := map[string]bool{}, map[int64]string{}
	for _, block := range in.content.Blocks.OfType("port") {
		label := block.Labels[0]
		in := in.inner(block, portFields)
		if err := service.CheckLabel(label); err != nil {
			in.problems.add(block.DefRange, "%s: %v", in.path, err)
		}
		if labels[label] {
			in.problems.add(block.DefRange, "%s: block given twice; each needs a label of its own", in.path)
		}
		labels[label] = true
		static := staticPort(in)
		if other, taken := numbers[static]; taken && static > 0 {
			in.fail("static", "%d is that of port %q too", static, other)
		}
		numbers[static] = label
		ports = append(ports, &hostv1.Port{Label: label, Static: int32(static)})
	}
	return ports
}

// staticPort reads a port's number, which jobs of Nomad also have as text.
func staticPort(s *section) (number int64) {
	if v, ok := s.value("static"); ok && v.Type() == cty.String {
		var err error
		if number, err = strconv.ParseInt(v.AsString(), 10, 64); err != nil || number < 1 || number > 65535 {
			s.fail("static", "a whole number from 1 to 65535 is required")
			return 0
		}
		return number
	}
	s.integer("static", 1, 65535, &number)
	return number
}

var validEnv = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[^=\x00]+$`) })

// program reads the workload's own. Arguments and environment keep their variables; the command may not contain any.
func program(s *section, variables *later) *hostv1.Exec {
	block := s.one("exec")
	if block == nil {
		return nil
	}
	in := s.inner(block, fields{attrs: []string{"command", "args", "user"}, blocks: []string{"env"}})
	e := &hostv1.Exec{}
	in.str("command", &e.Command)
	if strings.TrimSpace(e.Command) == "" {
		in.fail("command", "is required")
	}
	in.str("user", &e.User)
	in.later = variables
	in.strings("args", &e.Args)
	e.Env = variablesOf(in)
	return e
}

func variablesOf(s *section) map[string]string {
	env := s.free("env", false)
	for name := range env {
		if !validEnv().MatchString(name) {
			s.fail("env", "%q cannot be the name of a variable", name)
		}
	}
	return env
}

// sidecars reads the programs beside the workload's own. Each is the proxy of one of the services.
func sidecars(s *section, variables *later, services []service.Service) []*hostv1.Sidecar {
	var proxied []string
	for _, one := range services {
		if one.Proxied() {
			proxied = append(proxied, one.Name)
		}
	}
	taken := map[string]bool{}
	return list(s.content.Blocks.OfType("sidecar"), func(_ int, block *hcl.Block) *hostv1.Sidecar {
		in := s.inner(block, fields{attrs: []string{"service", "command", "user"}, blocks: []string{"env"}})
		c := &hostv1.Sidecar{}
		in.str("service", &c.Service)
		in.str("user", &c.User)
		checkProxy(in, c.Service, proxied, taken)
		in.later = variables
		in.strings("command", &c.Command)
		if len(c.Command) == 0 || strings.TrimSpace(c.Command[0]) == "" {
			in.fail("command", `is required: a list of the program and its arguments, such as ["envoy", "-c", "${bootstrap}"]`)
		}
		c.Env = variablesOf(in)
		return c
	})
}

// checkProxy checks which service a sidecar is the proxy of. proxied are the services with a proxy.
func checkProxy(s *section, name string, proxied []string, taken map[string]bool) {
	switch {
	case len(proxied) == 0:
		s.fail("service", "no service of the workload has a proxy; write a connect block with sidecar_service or gateway")
		return
	case name == "" && len(proxied) > 1:
		s.fail("service", "is required, since several services have a proxy: %s", strings.Join(proxied, ", "))
		return
	case name == "":
		name = proxied[0]
	case !slices.Contains(proxied, name):
		s.fail("service", "%q is no service with a proxy; these are: %s", name, strings.Join(proxied, ", "))
		return
	}
	if taken[name] {
		s.fail("service", "%q has a sidecar already", name)
	}
	taken[name] = true
}
