package operator

import (
	"testing"

	"github.com/pannier/pannier/cluster"
)

func TestHealth(t *testing.T) {
	voter, waiting := cluster.Peer{Voter: true, Healthy: true}, cluster.Peer{Healthy: true}
	sick := cluster.Peer{Voter: true}
	for name, test := range map[string]struct {
		peers   []cluster.Peer
		healthy bool
		mayFail int
	}{
		"one that was set up as one":   {[]cluster.Peer{voter}, true, 0},
		"three":                        {[]cluster.Peer{voter, voter, voter}, true, 1},
		"three, of which one is sick":  {[]cluster.Peer{voter, voter, sick}, false, 0},
		"one, and two without a vote":  {[]cluster.Peer{voter, waiting, waiting}, false, 0},
		"three, and a fourth is added": {[]cluster.Peer{voter, voter, voter, waiting}, false, 1},
	} {
		if h, n := Healthy(test.peers), FailureTolerance(test.peers); h != test.healthy || n != test.mayFail {
			t.Errorf("%s: healthy %t, %d may fail", name, h, n)
		}
	}
}
