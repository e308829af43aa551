package claim_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
)

func TestVolumesAreReachedFromTheirPlaces(t *testing.T) {
	var vol claim.Volume
	vol.VolumeRef = claim.VolumeRef{Namespace: claim.DefaultNamespace, ID: "mysql"}
	in := func(segments ...map[string]string) claim.Volume {
		v := vol
		for _, s := range segments {
			v.Topologies = append(v.Topologies, claim.Topology{Segments: s})
		}
		return v
	}
	rack := func(r string) map[string]string { return map[string]string{"rack": r} }
	for name, test := range map[string]struct {
		volume claim.Volume
		node   map[string]string
		says   string // empty: the volume can be reached
	}{
		"no topology":      {volume: vol, node: rack("R1")},
		"the node is free": {volume: in(rack("R1"))},
		"same":             {volume: in(rack("R1")), node: map[string]string{"rack": "R1", "zone": "z"}},
		"one of two":       {volume: in(rack("R1"), rack("R2")), node: rack("R2")},
		"another": {
			volume: in(rack("R1")), node: rack("R2"),
			says: `volume "mysql" is in rack=R1, node "b" has rack=R2`,
		},
		"two others": {
			volume: in(rack("R1"), rack("R3")), node: rack("R2"),
			says: `volume "mysql" is in rack=R1 or in rack=R3, node "b" has rack=R2`,
		},
		"one segment of two": {
			volume: in(map[string]string{"rack": "R1", "zone": "z1"}), node: map[string]string{"rack": "R1", "zone": "z2"},
			says: `volume "mysql" is in zone=z1, node "b" has zone=z2`,
		},
		"a segment is missing": {
			volume: in(rack("R1")), node: map[string]string{"zone": "z"},
			says: `volume "mysql" is in rack=R1, node "b" has no rack`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.volume.CheckReachable("b", test.node)
			if (err == nil) != (test.says == "") || err != nil &&
				(!errors.Is(err, claim.ErrUnreachable) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("%v", err)
			}
		})
	}
}
