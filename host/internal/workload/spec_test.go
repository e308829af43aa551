package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/sdk/service"
)

func TestValidateNamesEveryFault(t *testing.T) {
	good := func() Spec {
		s := spec("w", "a", "b")
		s.Exec = &Exec{Command: "true"}
		return s
	}
	s := good()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(s *Spec){
		"id: is missing":                         func(s *Spec) { s.ID = "" },
		`id: must not be ".."`:                   func(s *Spec) { s.ID = ".." },
		"id: is longer than 128 characters":      func(s *Spec) { s.ID = strings.Repeat("x", 129) },
		`namespace: "a/b" has the character '/'`: func(s *Spec) { s.Namespace = "a/b" },
		`volume "../x":`:                         func(s *Spec) { s.Volumes[0].Name = "../x" },
		`volume "a" is there twice`:              func(s *Spec) { s.Volumes[1].Name = "a" },
		`volume "a": source: is missing`:         func(s *Spec) { s.Volumes[0].Source = "" },
		`volume "a": unknown access_mode "rw"`:   func(s *Spec) { s.Volumes[0].AccessMode = "rw" },
		`volume "b": unknown attachment_mode`:    func(s *Spec) { s.Volumes[1].AttachmentMode = "file" },
		`destination "x" must be an absolute`:    func(s *Spec) { s.Volumes[0].Destination = "x" },
		`destination "/x/../y" must be`:          func(s *Spec) { s.Volumes[0].Destination = "/x/../y" },
		`destination "/" must be`:                func(s *Spec) { s.Volumes[0].Destination = "/" },
		`volumes "a" and "b" have one`:           func(s *Spec) { s.Volumes[1].Destination = "/a" },
		"exec: command is missing":               func(s *Spec) { s.Exec.Command = "" },
		"after: it cannot wait for itself":       func(s *Spec) { s.After = refs("v", "w") },
		`replaces: workload "v" is there twice`:  func(s *Spec) { s.After, s.Replaces = refs("v"), refs("v") },
		"after: ":                                func(s *Spec) { s.After = refs("../x") },
		"it waits for 33 workloads, 32 are allowed": func(s *Spec) {
			for n := range 33 {
				s.After = append(s.After, ref(fmt.Sprint("v", n)))
			}
		},
	} {
		s := good()
		spoil(&s)
		if err := s.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	attribute := func(key, value string) func(s *Spec) {
		return func(s *Spec) { s.Volumes[0].Attributes = map[string]string{key: value} }
	}
	for want, spoil := range map[string]func(s *Spec){
		`volume "scratch": driver: "a/b" has the character`:     func(s *Spec) { s.Volumes[0].Driver = "a/b" },
		`volume "scratch": it has a source`:                     func(s *Spec) { s.Volumes[0].Source = "a" },
		`has access_mode "single-node-writer"`:                  func(s *Spec) { s.Volumes[0].AccessMode = claim.MultiNodeMultiWriter },
		`has attachment_mode "file-system"`:                     func(s *Spec) { s.Volumes[0].AttachmentMode = claim.BlockDevice },
		`"csi.storage.k8s.io/pod.name" is set by the agent`:     attribute("csi.storage.k8s.io/pod.name", "x"),
		`its attributes have 3073 bytes, 3072 are allowed`:      attribute("a", strings.Repeat("x", 3072)),
		`attributes are those of an ephemeral volume: name its`: func(s *Spec) { s.Volumes[0].Source, s.Volumes[0].Driver = "a", "" },
	} {
		s := ephemeral()
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(&s)
		if err := s.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for want, spoil := range map[string]func(s *Spec){
		`port "1": "1" is no label`: func(s *Spec) { s.Ports[0].Label = "1" },
		`port "http" is there twice`: func(s *Spec) {
			s.Ports = append(s.Ports,
				Port{Label: "http"})
		},
		`port "http": static 65536 is no port`:                 func(s *Spec) { s.Ports[0].Static = 65536 },
		`ports "http" and "x" have one number, 80`:             func(s *Spec) { s.Ports = []Port{{"http", 80}, {"x", 80}} },
		`service "web": port: the workload has no port "http"`: func(s *Spec) { s.Ports = nil },
		"it has 65 services, 64 are allowed":                   func(s *Spec) { s.Services = make([]service.Service, 65) },
		"sidecar 1: command is missing":                        func(s *Spec) { s.Sidecars = []Sidecar{{}} },
		`sidecar 1: no service "db" has a proxy`: func(s *Spec) {
			s.Sidecars = []Sidecar{{
				Service: "db",
				Command: []string{"x"},
			}}
		},
		"sidecar 1: service must say whose it is: 2 services have a ": func(s *Spec) {
			s.Services = append(s.Services, sidecar("api"))
			s.Sidecars = []Sidecar{{Command: []string{"x"}}}
		},
	} {
		s := withServices(spec("w"), sidecar("web"))
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(&s)
		if err := s.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	bad := Spec{Volumes: []volumesteps.Request{{}}}
	if err := bad.Validate(); strings.Count(err.Error(), "is missing") != 4 {
		t.Errorf("not every fault is there: %v", err)
	}
}

// A specification read from the journal equals the one that was written.
func TestASpecSurvivesTheJournal(t *testing.T) {
	texts := rapid.SliceOfN(rapid.String(), 0, 2)
	rapid.Check(t, func(t *rapid.T) {
		s := spec(rapid.String().Draw(t, "id"))
		for range rapid.IntRange(0, 3).Draw(t, "volumes") {
			s.Volumes = append(s.Volumes, volumesteps.Request{
				Name: rapid.String().Draw(t, "name"), ReadOnly: rapid.Bool().Draw(t, "read only"),
				MountOptions: claim.MountOptions{Flags: texts.Draw(t, "flags"), Group: rapid.String().Draw(t, "group")},
			})
		}
		if rapid.Bool().Draw(t, "exec") {
			s.Exec = &Exec{Args: texts.Draw(t, "args"), Env: rapid.MapOfN(rapid.String(), rapid.String(), 0, 2).Draw(t, "env")}
		}
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Fatal(err)
		}
		if !s.equal(back) || !back.equal(s) {
			t.Fatalf("%+v became %+v", s, back)
		}
		back.Volumes = append(back.Volumes, volumesteps.Request{Name: "one more"})
		if s.equal(back) {
			t.Fatal("one more volume makes no difference")
		}
	})
}

func TestTheTableIsCutIntoGroups(t *testing.T) {
	var got []string
	for _, g := range groups() {
		var names []string
		for _, s := range g {
			names = append(names, s.name)
		}
		got = append(got, strings.Join(names, "+"))
	}
	if s := strings.Join(got, " "); s != "await claim reserve attach+stage+publish+register+identify+bootstrap" {
		t.Errorf("got %s", s)
	}
}
