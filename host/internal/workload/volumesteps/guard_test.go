package volumesteps

import (
	"errors"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// unlocked is a workload whose records nobody else reads.
type unlocked struct{ step.Workload }

func (unlocked) View(read func())     { read() }
func (unlocked) Update(change func()) { change() }
func (unlocked) Ref() claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: "default", ID: "db"}
}

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

// While the host was away another workload may have had the volume in between, and what is mounted is from before.
func TestStartThatGoesOnUnderAnotherClaim(t *testing.T) {
	set := NewSet(unlocked{}, nil)
	rec := &Record{Index: 7}
	rec.VolumeRef = claim.VolumeRef{Namespace: "default", ID: "mysql"}
	set.Volumes = []*Volume{{Record: rec, set: set, workload: set.Ref()}}
	v := claim.Volume{Definition: claim.Definition{VolumeRef: rec.VolumeRef}}
	for _, index := range []uint64{6, 8} {
		rec.Index = 7
		err := new(Claims).Granted(t.Context(), set, command.StartWorkloadResult{
			Claims: []claim.Claim{{Volume: rec.VolumeRef, Workload: set.Ref(), Index: index}}, Volumes: []claim.Volume{v},
		}, 1)
		if !errors.Is(err, ErrClaimsLost) {
			t.Errorf("with the claim of index %d instead of 7: %v", index, err)
		}
	}
}
