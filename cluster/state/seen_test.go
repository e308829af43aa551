package state

import (
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// A node that is silent reports nothing: its drivers are not healthy, whatever it reported last.
func TestDriversOfANodeThatIsDown(t *testing.T) {
	l := open(t)
	put := func(node string) {
		l.must(&command.PutNode{Node: claim.Node{Name: node, Drivers: map[string]claim.NodeDriver{
			"d": {ID: "d", Type: claim.Monolith, Healthy: true},
			"e": {ID: "e", Type: claim.Monolith, Healthy: true, ControllerApart: &claim.DriverHealth{Healthy: true}},
		}}})
	}
	expect := func(what string, healthy int, message string) {
		t.Helper()
		view(t, l, func(tx *ReadTx) error {
			all, err := tx.Drivers()
			check.NoError(t, err)
			for _, d := range all {
				on := d.Nodes["a"]
				if d.ControllersHealthy != healthy || d.NodesHealthy != healthy || d.NodesExpected != 2 ||
					on.Message != message || on.ForController().Message != message {
					t.Errorf("%s: driver %s is %+v", what, d.ID, d)
				}
			}
			if len(all) != 2 {
				t.Errorf("%s: %d drivers", what, len(all))
			}
			return nil
		})
	}
	put("a")
	put("b")
	expect("both are up", 2, "")
	l.must(&command.SetNodeStatus{Name: "a", Status: claim.NodeDisconnected})
	expect("one is silent", 1, "the node is disconnected")
	l.must(&command.SetNodeStatus{Name: "a", Status: claim.NodeDown})
	expect("one is down", 1, "the node is down")
	put("a")
	expect("it is back", 2, "")
}
