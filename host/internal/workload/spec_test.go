package workload

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/specs"
)

// A specification read from the journal equals the one that was written.
func TestASpecSurvivesTheJournal(t *testing.T) {
	texts := rapid.SliceOfN(rapid.String(), 0, 2)
	rapid.Check(t, func(t *rapid.T) {
		s := spec(rapid.String().Draw(t, "id"))
		for range rapid.IntRange(0, 3).Draw(t, "volumes") {
			s.Volumes = append(s.Volumes, specs.VolumeRequest{
				Name: rapid.String().Draw(t, "name"), ReadOnly: rapid.Bool().Draw(t, "read only"),
				MountOptions: claim.MountOptions{Flags: texts.Draw(t, "flags"), Group: rapid.String().Draw(t, "group")},
			})
		}
		if rapid.Bool().Draw(t, "exec") {
			s.Exec = &specs.Exec{Args: texts.Draw(t, "args"), Env: rapid.MapOfN(rapid.String(), rapid.String(), 0, 2).Draw(t, "env")}
		}
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Fatal(err)
		}
		if !s.Equal(back) || !back.Equal(s) {
			t.Fatalf("%+v became %+v", s, back)
		}
		back.Volumes = append(back.Volumes, specs.VolumeRequest{Name: "one more"})
		if s.Equal(back) {
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
