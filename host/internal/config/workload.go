package config

import (
	"errors"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/vars"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/device"
)

var (
	workloadFields = fields{
		attrs: []string{"namespace", "user", "canary", "after", "replaces"}, blocks: []string{"network", "exec", "sidecar"},
		labelled: []string{"volume", "device"}, named: []string{"service"},
	}
	deviceFields  = fields{attrs: []string{"count"}}
	requestFields = fields{
		attrs:  []string{"source", "read_only", "access_mode", "attachment_mode", "destination"},
		blocks: []string{"mount_options"},
	}
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

// ParseWorkload reads a workload spec; name stands in problems. A spec that names no
// namespace has an empty one, for the caller to settle. The error is Problems.
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
		problems.add(blocks[1].DefRange, "workload: a second one in this file; write one file a workload")
	}
	if len(blocks) == 0 {
		return nil, problems.err()
	}
	spec := file.workload(blocks[0])
	if err := problems.err(); err != nil {
		return nil, err
	}
	return spec, nil
}

func (s *section) workload(block *hcl.Block) *hostv1.WorkloadSpec {
	spec := &hostv1.WorkloadSpec{Id: block.Labels[0]}
	in := s.inner(block, workloadFields)
	if err := CheckID(spec.Id); err != nil {
		s.problems.add(block.DefRange, "%s: id %v", in.path, err)
	}
	if in.str("namespace", &spec.Namespace) {
		in.id("namespace", spec.Namespace)
	}
	seen := map[string]bool{}
	destinations := map[string]string{}
	for _, block := range in.content.Blocks.OfType("volume") {
		spec.Volumes = append(spec.Volumes, in.request(block, seen, destinations))
	}
	named := map[string]bool{}
	for _, block := range in.content.Blocks.OfType("device") {
		spec.Devices = append(spec.Devices, in.device(block, named))
	}
	in.str("user", &spec.User)
	in.boolean("canary", &spec.Canary)
	others := map[string]bool{}
	in.awaited("after", spec.Id, others, &spec.After)
	in.awaited("replaces", spec.Id, others, &spec.Replaces)
	spec.Ports = in.ports()
	var labels []string
	for _, port := range spec.Ports {
		labels = append(labels, port.Label)
	}
	services := in.services(labels)
	spec.Services = in.messages(services)
	variables := newLater(vars.InPrograms(labels))
	spec.Exec = in.exec(variables)
	spec.Sidecars = in.sidecars(variables, services)
	return spec
}

// awaited reads the names of other workloads: ID or NAMESPACE/ID. others are those that
// were read before.
func (s *section) awaited(name, own string, others map[string]bool, dst *[]string) {
	s.strings(name, dst)
	for _, ref := range *dst {
		namespace, id, qualified := strings.Cut(ref, "/")
		if !qualified {
			namespace, id = claim.DefaultNamespace, ref
		}
		switch err := errors.Join(CheckID(namespace), CheckID(id)); {
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

// device reads one device block. named are those before it.
func (s *section) device(block *hcl.Block, named map[string]bool) *hostv1.DeviceRequest {
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
	in.integer("count", 1, device.MaxDevices, &count)
	r.Count = int32(count)
	return r
}

// request reads one volume block. destinations are those of the blocks before it.
func (s *section) request(block *hcl.Block, seen map[string]bool, destinations map[string]string) *hostv1.VolumeRequest {
	r := &hostv1.VolumeRequest{Name: block.Labels[0]}
	in := s.inner(block, requestFields)
	if err := CheckID(r.Name); err != nil {
		s.problems.add(block.DefRange, "%s: name %v", in.path, err)
	}
	if seen[r.Name] {
		s.problems.add(block.DefRange, "%s: block given twice; each needs a name of its own", in.path)
	}
	seen[r.Name] = true

	in.str("source", &r.Source)
	in.id("source", r.Source)
	in.boolean("read_only", &r.ReadOnly)
	in.modes(&r.AccessMode, &r.AttachmentMode)
	r.MountOptions = in.mountOptions()
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
