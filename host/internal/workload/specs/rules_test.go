package specs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/service"
)

func proxied(name string) service.Service {
	return service.Service{Name: name, Port: "http", Connect: &service.Connect{SidecarService: &service.SidecarService{}}}
}

// good has one of each; a change of it is one fault.
func good() *Spec {
	return &Spec{
		WorkloadRef: claim.WorkloadRef{Namespace: "default", ID: "w"},
		Volumes: []VolumeRequest{
			{Name: "a", Source: "a", Destination: "/a"},
			{Name: "b", Source: "b", Destination: "/b"},
			{Name: "scratch", Driver: "local", Attributes: map[string]string{"size": "1GiB"}, Destination: "/scratch"},
		},
		Exec:     &Exec{Command: "true"},
		Services: []service.Service{proxied("web")},
		Ports:    []Port{{"http", 80}, {"x", 0}},
		Sidecars: []Sidecar{{Command: []string{"envoy"}}},
		Devices:  []DeviceRequest{{"gpu", 1}, {"acme/fpga/x", 256}},
		Units:    []string{"web.service", "web@1.service", `dev-disk\x2d1.service`},
	}
}

func refs(ids ...string) (all []claim.WorkloadRef) {
	for _, id := range ids {
		all = append(all, claim.WorkloadRef{Namespace: "default", ID: id})
	}
	return all
}

func TestValidateNamesEveryFault(t *testing.T) {
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	attribute := func(key, value string) func(s *Spec) {
		return func(s *Spec) { s.Volumes[2].Attributes = map[string]string{key: value} }
	}
	unit := func(name string) func(s *Spec) { return func(s *Spec) { s.Units = []string{name} } }
	named := func(name string) func(s *Spec) { return func(s *Spec) { s.Devices[0].Name = name } }
	const noUnit, noDevices = " is not the name of a systemd service", ": the name must be TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME"
	for want, spoil := range map[string]func(s *Spec){
		"id: is missing":                         func(s *Spec) { s.ID = "" },
		`id: must not be ".."`:                   func(s *Spec) { s.ID = ".." },
		"id: is longer than 128 characters":      func(s *Spec) { s.ID = strings.Repeat("x", 129) },
		`namespace: "a/b" has the character '/'`: func(s *Spec) { s.Namespace = "a/b" },
		"the specification: has ":                func(s *Spec) { s.User = strings.Repeat("x", 128<<10) },
		"volumes: there are 129, 128 are allowed": func(s *Spec) {
			for n := range 126 {
				v := fmt.Sprint("v", n)
				s.Volumes = append(s.Volumes, VolumeRequest{Name: v, Source: v, Destination: "/" + v})
			}
		},
		`volume "../x": name: "../x" has the character`: func(s *Spec) { s.Volumes[0].Name = "../x" },
		`volume "a": is there twice`:                    func(s *Spec) { s.Volumes[1].Name = "a" },
		`volume "a": source: is required: the id of a `: func(s *Spec) { s.Volumes[0].Source = "" },
		`volume "a": source: "a/b" has the character`:   func(s *Spec) { s.Volumes[0].Source = "a/b" },
		`volume "a": access_mode: "rw" is not one of`:   func(s *Spec) { s.Volumes[0].AccessMode = "rw" },
		`volume "b": attachment_mode: "file" is not one`: func(s *Spec) {
			s.Volumes[1].AttachmentMode = "file"
		},
		`volume "a": destination: is required`:                    func(s *Spec) { s.Volumes[0].Destination = "" },
		`destination: "x" is not an absolute path`:                func(s *Spec) { s.Volumes[0].Destination = "x" },
		`destination: "/x/../y" is not a clean path; write "/y"`:  func(s *Spec) { s.Volumes[0].Destination = "/x/../y" },
		`destination: "/x\ny" has a control character`:            func(s *Spec) { s.Volumes[0].Destination = "/x\ny" },
		"destination: must not be /":                              func(s *Spec) { s.Volumes[0].Destination = "/" },
		`volume "b": destination: "/a" is that of volume "a" too`: func(s *Spec) { s.Volumes[1].Destination = "/a" },

		`volume "scratch": driver: "a/b" has the character`:       func(s *Spec) { s.Volumes[2].Driver = "a/b" },
		`volume "scratch": source: is a volume that is register`:  func(s *Spec) { s.Volumes[2].Source = "a" },
		`access_mode: is "single-node-writer" for a volume that`:  func(s *Spec) { s.Volumes[2].AccessMode = claim.MultiNodeMultiWriter },
		`attachment_mode: is "file-system" for a volume that`:     func(s *Spec) { s.Volumes[2].AttachmentMode = claim.BlockDevice },
		`"csi.storage.k8s.io/pod.name" is set by the agent`:       attribute("csi.storage.k8s.io/pod.name", "x"),
		`attributes: have 3073 bytes, 3072 are allowed`:           attribute("a", strings.Repeat("x", 3072)),
		`attributes: are those of a volume that a driver makes f`: func(s *Spec) { s.Volumes[2].Source, s.Volumes[2].Driver = "a", "" },

		"exec: command: is required":                    func(s *Spec) { s.Exec.Command = " " },
		`exec: env: "A=B" cannot be the name`:           func(s *Spec) { s.Exec.Env = map[string]string{"A=B": "c"} },
		`after: "w" is this workload`:                   func(s *Spec) { s.After = refs("v", "w") },
		`replaces: workload "v" is there twice`:         func(s *Spec) { s.After, s.Replaces = refs("v"), refs("v") },
		`after: "../x" is neither ID nor NAMESPACE/ID`:  func(s *Spec) { s.After = refs("../x") },
		"after: there are 33, 32 are allowed":           func(s *Spec) { s.After = refs(strings.Fields(strings.Repeat("v ", 33))...) },
		`port "1": "1" is no label`:                     func(s *Spec) { s.Ports[1].Label = "1" },
		`port "http": is there twice`:                   func(s *Spec) { s.Ports[1].Label = "http" },
		`port "x": static: a whole number from 1 to 65`: func(s *Spec) { s.Ports[1].Static = 65536 },
		`port "x": static: 80 is that of port "http"`:   func(s *Spec) { s.Ports[1].Static = 80 },
		`"web": port: the workload has no port "http"`:  func(s *Spec) { s.Ports = nil },
		"services: there are 65, 64 are allowed":        func(s *Spec) { s.Services = make([]service.Service, 65) },

		"sidecar 1: command: is required":           func(s *Spec) { s.Sidecars[0].Command = []string{" "} },
		`sidecar 1: env: "" cannot be the name`:     func(s *Spec) { s.Sidecars[0].Env = map[string]string{"": "c"} },
		"sidecar 1: service: no service of the":     func(s *Spec) { s.Services = nil },
		`sidecar 1: service: "db" is no service w`:  func(s *Spec) { s.Sidecars[0].Service = "db" },
		`sidecar 2: service: "web" has a sidecar`:   func(s *Spec) { s.Sidecars = append(s.Sidecars, s.Sidecars[0]) },
		"sidecar 1: service: is required, since se": func(s *Spec) { s.Services = append(s.Services, proxied("api")) },

		`device "a//b"` + noDevices:                 named("a//b"),
		`device ""` + noDevices:                     named(""),
		`device "/gpu"` + noDevices:                 named("/gpu"),
		`device "acme/"` + noDevices:                named("acme/"),
		`device "acme/gpu/"` + noDevices:            named("acme/gpu/"),
		`device "acme/fpga/x": is there twice`:      named("acme/fpga/x"),
		"count: a whole number from 1 to 256 is re": func(s *Spec) { s.Devices[0].Count = 0 },
		"is required, not 257":                      func(s *Spec) { s.Devices[0].Count = device.MaxDevices + 1 },

		`units: "web"` + noUnit:                     unit("web"),
		`units: "web.socket"` + noUnit:              unit("web.socket"),
		`units: "a/b.service"` + noUnit:             unit("a/b.service"),
		`units: "a b.service"` + noUnit:             unit("a b.service"),
		`units: "-x.service"` + noUnit:              unit("-x.service"),
		`units: ".service"` + noUnit:                unit(".service"),
		`units: "web.service" is there twice`:       func(s *Spec) { s.Units[1] = s.Units[0] },
		"units: there are 33, 32 are allowed":       func(s *Spec) { s.Units = make([]string, 33) },
		`service "web": name: another service of t`: func(s *Spec) { s.Services = append(s.Services, proxied("web")) },
	} {
		s := good()
		spoil(s)
		if err := s.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	bad := Spec{Volumes: []VolumeRequest{{}}}
	if err := bad.Validate(); strings.Count(err.Error(), "is missing")+strings.Count(err.Error(), "is required") != 5 {
		t.Errorf("not every fault is there: %v", err)
	}
}

// Names of other workloads without a namespace are in the workload's own.
func TestOtherWorkloads(t *testing.T) {
	s := Of(&hostv1.WorkloadSpec{Namespace: "prod", Id: "w", After: []string{"v", "other/x"}, Replaces: []string{"prod/w"}})
	if fmt.Sprint(s.After, s.Replaces) != "[prod/v other/x] [prod/w]" {
		t.Errorf("after %v, replaces %v", s.After, s.Replaces)
	}
	if p := s.Problems(); len(p) != 1 || p[0].Pointer != "/replaces" {
		t.Errorf("problems %v", p)
	}
}
