package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/host/internal/system/vars"
	"github.com/pannier/pannier/host/internal/workload/specs"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

var (
	workloadFields = fields{
		attrs: []string{"namespace", "user", "canary", "after", "replaces", "units", "shutdown_delay"}, blocks: []string{"network", "exec", "sidecar"},
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
			"type":              `leave it out: every volume has a CSI driver; for type = "host" make one of csi-local`,
			"per_alloc":         "make a volume for each workload, and name it as source",
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
	return readSpec(path, ParseWorkload)
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
	r := &workloadReader{places: map[string]*section{"": in}}
	if in.str("namespace", &spec.Namespace) && spec.Namespace == "" {
		in.fail("namespace", "is required")
	}
	spec.Volumes = blocksOf(r, in, "volume", "/volumes", requestFields, volumeRequest)
	spec.Devices = blocksOf(r, in, "device", "/devices", deviceFields, deviceRequest)
	in.str("user", &spec.User)
	in.boolean("canary", &spec.Canary)
	in.strings("after", &spec.After)
	in.strings("replaces", &spec.Replaces)
	in.strings("units", &spec.Units)
	in.str("shutdown_delay", &spec.ShutdownDelay)
	spec.Ports = r.ports(in)
	for _, port := range spec.Ports {
		r.labels = append(r.labels, port.Label)
	}
	services := r.services(in)
	for _, label := range r.labels[len(spec.Ports):] {
		spec.Ports = append(spec.Ports, &hostv1.Port{Label: label})
	}
	spec.Exec = r.program(in)
	sidecarFields := fields{attrs: []string{"service", "command", "user"}, blocks: []string{"env"}}
	variables := newLater(vars.InSidecars(r.labels))
	spec.Sidecars = blocksOf(r, in, "sidecar", "/sidecars", sidecarFields, func(in *section, _ string) *hostv1.Sidecar {
		c := &hostv1.Sidecar{}
		in.str("service", &c.Service)
		in.str("user", &c.User)
		in.later = variables
		in.strings("command", &c.Command)
		c.Env = in.free("env", false)
		return c
	})
	wanted := specs.Of(spec)
	wanted.Services = services
	for _, p := range wanted.Problems() {
		r.tell(p)
	}
	spec.Services = messages(in, services)
	return spec
}

// blocksOf reads the blocks of a type with a function, which is given the label. at is the pointer of their list.
func blocksOf[T any](r *workloadReader, s *section, typeName, at string, f fields, read func(*section, string) T) []T {
	return list(s.content.Blocks.OfType(typeName), func(i int, block *hcl.Block) T {
		in := s.inner(block, f)
		r.places[fmt.Sprint(at, "/", i)] = in
		return read(in, strings.Join(block.Labels, ""))
	})
}

func deviceRequest(in *section, name string) *hostv1.DeviceRequest {
	r := &hostv1.DeviceRequest{Name: name, Count: 1}
	in.small("count", &r.Count)
	return r
}

func volumeRequest(in *section, name string) *hostv1.VolumeRequest {
	r := &hostv1.VolumeRequest{Name: name}
	in.boolean("read_only", &r.ReadOnly)
	readModes(in, &r.AccessMode, &r.AttachmentMode)
	in.str("source", &r.Source)
	in.str("driver", &r.Driver)
	r.Attributes = in.texts("attributes")
	r.MountOptions = mountOptions(in)
	in.str("destination", &r.Destination)
	return r
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

func (r *workloadReader) ports(s *section) []*hostv1.Port {
	block := s.one("network")
	if block == nil {
		return nil
	}
	in := s.inner(block, networkFields)
	var mode string
	if in.str("mode", &mode) && mode != "host" {
		in.fail("mode", `%q is not supported: a workload has its node's network; leave it out, or write mode = "host"`, mode)
	}
	return blocksOf(r, in, "port", "/ports", portFields, func(in *section, label string) *hostv1.Port {
		return &hostv1.Port{Label: label, Static: int32(staticPort(in))}
	})
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

// program reads the workload's own. Arguments and environment keep their variables; the command may not contain any.
func (r *workloadReader) program(s *section) *hostv1.Exec {
	block := s.one("exec")
	if block == nil {
		return nil
	}
	in := s.inner(block, fields{attrs: []string{"command", "args", "user", "kill_signal", "kill_timeout"}, blocks: []string{"env"}})
	r.places["/exec"] = in
	e := &hostv1.Exec{}
	in.str("command", &e.Command)
	in.str("user", &e.User)
	in.str("kill_signal", &e.KillSignal)
	in.str("kill_timeout", &e.KillTimeout)
	in.later = newLater(vars.InPrograms(r.labels))
	in.strings("args", &e.Args)
	e.Env = in.free("env", false)
	return e
}
