package apiserver

import (
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// A driver is shown with what each node has of it, and its volumes with the counts of all nodes.
func TestADriverOnSeveralNodes(t *testing.T) {
	h := openHost(t)
	_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: spec("mysql")})
	check.NoError(t, err)
	get := func() *hostv1.Volume {
		t.Helper()
		v := check.Must(h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"}))(t)
		return v.GetVolume()
	}
	before := get()
	_, err = cluster.Apply(h.ctx, h.ledger,
		&command.PutNode{Node: claim.Node{Name: "n2", BootID: "1", Drivers: map[string]claim.NodeDriver{
			"fake": {
				ID: "fake", Type: claim.Monolith, Message: "it is down", Provider: "fake.example.com", Version: "1",
				ControllerApart: &claim.DriverHealth{Healthy: true}, NodeID: "n2-at-fake", MaxVolumes: 7,
				Controller: &claim.ControllerCapabilities{ListVolumes: true}, Node: &claim.NodeCapabilities{StageUnstage: true},
			},
		}}})
	check.NoError(t, err)

	got := check.Must(h.client.Drivers.GetDriver(h.ctx, &hostv1.GetDriverRequest{Id: "fake"}))(t)
	d := got.GetDriver()
	if d.GetModifyIndex() == 0 || len(d.GetOnNodes()) == 0 {
		t.Fatalf("driver %v", d)
	}
	n := d.GetOnNodes()[len(d.GetOnNodes())-1]
	if n.GetNode() != "n2" || n.GetHealthy() || n.GetMessage() != "it is down" || !n.GetControllerHealthy() ||
		n.GetNodeId() != "n2-at-fake" || n.GetMaxVolumes() != 7 || len(n.GetControllerCapabilities()) != 1 ||
		n.GetNodeCapabilities()[0] != "STAGE_UNSTAGE_VOLUME" {
		t.Errorf("on n2: %v", n)
	}
	after := get()
	list, err := h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{})
	check.NoError(t, err)
	for _, v := range []*hostv1.Volume{after, list.GetVolumes()[0]} {
		if v.GetNodesExpected() != before.GetNodesExpected()+1 || v.GetNodesHealthy() != before.GetNodesHealthy() ||
			v.GetControllersHealthy() != before.GetControllersHealthy()+1 {
			t.Errorf("before %v, then %v", before, v)
		}
	}
	// A query waits for its driver, too.
	_, err = h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{
		Id: "mysql", Read: &hostv1.ReadOptions{Index: before.GetModifyIndex()},
	})
	check.NoError(t, err)
}
