package workload

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/cluster/claim"
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
	} {
		s := good()
		spoil(&s)
		if err := s.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	bad := Spec{Volumes: []VolumeRequest{{}}}
	if err := bad.Validate(); strings.Count(err.Error(), "is missing") != 4 {
		t.Errorf("not every fault is there: %v", err)
	}
}

// A specification is equal to itself out of the journal.
func TestASpecSurvivesTheJournal(t *testing.T) {
	texts := rapid.SliceOfN(rapid.String(), 0, 2)
	rapid.Check(t, func(t *rapid.T) {
		s := spec(rapid.String().Draw(t, "id"))
		for range rapid.IntRange(0, 3).Draw(t, "volumes") {
			s.Volumes = append(s.Volumes, VolumeRequest{
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
		back.Volumes = append(back.Volumes, VolumeRequest{Name: "one more"})
		if s.equal(back) {
			t.Fatal("one more volume makes no difference")
		}
	})
}

func TestTheRequestsMountOptionsReplaceTheVolumes(t *testing.T) {
	volume := claim.MountOptions{FSType: "ext4", Flags: []string{"noatime", "ro"}, Group: "7"}
	for want, request := range map[string]claim.MountOptions{
		`{"fs_type":"ext4","mount_flags":["noatime","ro"],"volume_mount_group":"7"}`: {},
		`{"fs_type":"xfs","mount_flags":["noatime","ro"],"volume_mount_group":"7"}`:  {FSType: "xfs"},
		`{"fs_type":"ext4","mount_flags":["sync"],"volume_mount_group":"7"}`:         {Flags: []string{"sync"}},
		`{"fs_type":"ext4","mount_flags":["noatime","ro"],"volume_mount_group":"8"}`: {Group: "8"},
	} {
		if got, _ := json.Marshal(merge(volume, request)); string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
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
	if s := strings.Join(got, " "); s != "claim attach+stage+publish+register+identify+bootstrap" {
		t.Errorf("got %s", s)
	}
}
