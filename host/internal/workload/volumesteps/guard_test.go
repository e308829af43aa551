package volumesteps

import (
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// unlocked is a workload whose records nobody else reads.
type unlocked struct{ step.Workload }

func (unlocked) View(read func()) { read() }

// Only the claim that the workload took here, and that nobody releases, allows a mount.
func TestLostClaims(t *testing.T) {
	w := claim.WorkloadRef{Namespace: "default", ID: "db"}
	ref := claim.VolumeRef{Namespace: "default", ID: "mysql"}
	set := NewSet(unlocked{}, nil)
	rec := &Record{Index: 7}
	rec.VolumeRef = ref
	set.Volumes = []*Volume{{Record: rec, set: set, workload: w}}
	for name, tc := range map[string]struct {
		change func(c *claim.Claim)
		lost   bool
	}{
		"as it was taken":     {func(*claim.Claim) {}, false},
		"being unmounted":     {func(c *claim.Claim) { c.State = claim.Unpublishing }, true},
		"being detached":      {func(c *claim.Claim) { c.State = claim.NodeDetached }, true},
		"taken anew":          {func(c *claim.Claim) { c.Index++ }, true},
		"on another node":     {func(c *claim.Claim) { c.Node = "b" }, true},
		"of another workload": {func(c *claim.Claim) { c.Workload.ID = "web" }, true},
		"on another volume":   {func(c *claim.Claim) { c.Volume.ID = "other" }, true},
	} {
		c := claim.Claim{Volume: ref, Workload: w, Node: "a", Index: 7, State: claim.Taken}
		tc.change(&c)
		if lost := set.Lost("a", []claim.Claim{c}); (len(lost) == 1) != tc.lost {
			t.Errorf("%s: lost are %v", name, lost)
		}
	}
	if lost := set.Lost("a", nil); len(lost) != 1 {
		t.Errorf("without any: lost are %v", lost)
	}
}
