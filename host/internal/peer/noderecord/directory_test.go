package noderecord

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/test/lib/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ controllers.Cluster = &Directory{}

// timeout is long enough for a slow machine.
const timeout = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDirectory(t *testing.T) {
	s := clustertest.Start(t)
	d := &Directory{Cluster: s.Node}
	if _, err := d.Driver("d"); !errors.Is(err, claim.ErrDriverNotFound) {
		t.Error(err)
	}
	changed := d.Changed(t.Context(), "d")
	_, err := cluster.Apply(t.Context(), s, &command.PutNode{Node: claim.Node{Name: "n1", Drivers: map[string]claim.NodeDriver{
		"d": {
			ID: "d", Type: claim.Monolith, Healthy: true, NodeID: "dn1",
			Controller: &claim.ControllerCapabilities{AttachDetach: true},
		},
	}}})
	must(t, err)
	select {
	case <-changed:
	case <-time.After(timeout):
		t.Error("the driver's change was not told")
	}
	got, err := d.Driver("d")
	if err != nil || got.Nodes["n1"].NodeID != "dn1" || !got.Nodes["n1"].Controller.AttachDetach {
		t.Errorf("%+v, %v", got, err)
	}
	if n, err := d.Node("n1"); err != nil || n.Name != "n1" {
		t.Errorf("%+v, %v", n, err)
	}
	if servers, err := d.Servers(); err != nil || len(servers) != 1 {
		t.Errorf("servers %q, %v", servers, err)
	}
}
