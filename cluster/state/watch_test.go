package state

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func TestReleasingChanged(t *testing.T) {
	l := open(t)
	var read uint64
	expect := func(what string, all bool, names ...string) {
		t.Helper()
		got := l.ReleasingChanged(read)
		var volumes []string
		for _, ref := range got.Volumes {
			volumes = append(volumes, ref.ID)
		}
		slices.Sort(volumes)
		if got.All != all || !slices.Equal(volumes, names) {
			t.Errorf("%s: %+v, not all: %t, %q", what, got, all, names)
		}
		read = got.Next
	}
	expect("at first", true)
	expect("nothing has changed", false)
	for _, id := range []string{"v", "w"} {
		l.must(&command.RegisterVolume{Volume: volume(id, claim.SingleNodeWriter)})
		l.must(&command.StartWorkload{
			Ref: workload("of-" + id), Node: "a", Claims: []claim.Claim{wanted(id, claim.SingleNodeWriter, claim.Write)},
		})
	}
	expect("claims are taken", false)
	l.must(&command.EndWorkload{Ref: workload("of-v")})
	expect("a release has begun", false, "v")
	l.must(&command.EndWorkload{Ref: workload("of-w")})
	for _, to := range []claim.State{claim.NodeDetached, claim.Freed} {
		l.must(&command.AdvanceClaims{Items: []command.Advance{{Volume: ref("v"), Workload: workload("of-v"), To: to}}})
	}
	expect("another one has, and the first is over", false, "v", "w")
	both := []claim.Claim{
		wanted("v", claim.SingleNodeWriter, claim.Write), wanted("x", claim.SingleNodeWriter, claim.Write),
	}
	l.must(&command.RegisterVolume{Volume: volume("x", claim.SingleNodeWriter)})
	l.must(&command.StartWorkload{Ref: workload("of-both"), Node: "a", Claims: both})
	l.must(&command.EndWorkload{Ref: workload("of-both")})
	expect("two at once", false, "v", "x")
	for i := range maxChangedReleasing + 1 {
		l.releasing.note([]claim.VolumeRef{ref(fmt.Sprint(i))})
	}
	expect("more than are remembered", true)
	l.releasing.note([]claim.VolumeRef{ref("x"), ref("y")})
	expect("the last ones", false, "x", "y")
	restore(t, l, snapshot(t, l))
	expect("after a restore", true)
}
