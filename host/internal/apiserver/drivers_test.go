package apiserver

import (
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/sdk/api"
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

// Whoever adds a driver's controller may be asked with the secrets of all namespaces.
func TestControllersAreRegisteredByOperators(t *testing.T) {
	h := openACLHost(t)
	const plugin = `plugin { policy = "write" }`
	developer, operator := h.as(t, "developer", plugin), h.as(t, "operator", plugin+"\noperator { policy = \"write\" }")
	register := func(c *api.Client, kind string) error {
		_, err := c.Drivers.RegisterDriver(h.ctx, &hostv1.RegisterDriverRequest{
			Id: "nfs", Type: kind, Endpoint: "unix://" + filepath.Join(t.TempDir(), "csi.sock"),
		})
		return err
	}
	for _, kind := range []string{"", "monolith", "controller"} {
		wantError(t, register(developer, kind), connect.CodePermissionDenied, `policy "write" for operator is missing`)
		if err := register(operator, kind); connect.CodeOf(err) == connect.CodePermissionDenied {
			t.Errorf("an operator registers type %q: %v", kind, err)
		}
	}
	if err := register(developer, "node"); connect.CodeOf(err) == connect.CodePermissionDenied {
		t.Errorf("a node service: %v", err)
	}
}

func TestApproveDriver(t *testing.T) {
	h := openHost(t)
	h.putNode(t, "n2")
	approve := func(revoke bool) []string {
		t.Helper()
		resp := check.Must(h.client.Nodes.ApproveDriver(h.ctx,
			&hostv1.ApproveDriverRequest{Name: "n2", DriverId: "d", Revoke: revoke}))(t)
		return resp.GetNode().GetControllerOf()
	}
	for range 2 {
		if got := approve(false); len(got) != 1 || got[0] != "d" {
			t.Errorf("approved %q", got)
		}
	}
	if got := approve(true); len(got) != 0 {
		t.Errorf("after the end %q", got)
	}
	_, err := h.client.Nodes.ApproveDriver(h.ctx, &hostv1.ApproveDriverRequest{Name: "nosuch", DriverId: "d"})
	wantError(t, err, connect.CodeNotFound, `"nosuch"`)
	_, err = h.client.Nodes.ApproveDriver(h.ctx, &hostv1.ApproveDriverRequest{Name: "n2", DriverId: "../d"})
	wantError(t, err, connect.CodeInvalidArgument, "driver_id")
}
