package apiserver

import (
	"errors"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// putNode adds another node to the ledger.
func (h *host) putNode(t *testing.T, name string) {
	t.Helper()
	_, err := cluster.Apply(h.ctx, h.ledger,
		&command.PutNode{Node: claim.Node{Name: name, BootID: "1", Attributes: map[string]string{"k": "v"}}})
	check.NoError(t, err)
}

func TestNodes(t *testing.T) {
	h := openHost(t)
	h.putNode(t, "n2")
	list := check.Must(h.client.Nodes.ListNodes(h.ctx, &hostv1.ListNodesRequest{}))(t)
	if n := list.GetNodes(); len(n) != 2 || n[0].GetName() != "n1" || n[0].GetStatus() != "ready" ||
		!n[0].GetEligible() || len(n[0].GetDrivers()) != 1 ||
		n[1].GetAttributes()["k"] != "v" || n[1].GetDrain() != nil || list.GetMeta().GetIndex() == 0 {
		t.Errorf("nodes %v", list)
	}
	_, err := h.client.Nodes.SetNodeEligibility(h.ctx, &hostv1.SetNodeEligibilityRequest{Name: "n2"})
	check.NoError(t, err)
	_, err = cluster.Apply(h.ctx, h.ledger,
		command.Start(claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "w"}, Node: "n2"}, nil))
	if !errors.Is(err, claim.ErrIneligible) {
		t.Errorf("a workload starts on a node that takes none: %v", err)
	}
	_, err = h.client.Nodes.SetNodeEligibility(h.ctx, &hostv1.SetNodeEligibilityRequest{Name: "n2", Eligible: true})
	check.NoError(t, err)
	_, err = cluster.Apply(h.ctx, h.ledger,
		command.Start(claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "w"}, Node: "n2"}, nil))
	check.NoError(t, err)

	bind := func(namespaces ...string) []string {
		t.Helper()
		resp, err := h.client.Nodes.SetNodeNamespaces(h.ctx,
			&hostv1.SetNodeNamespacesRequest{Name: "n2", Namespaces: namespaces})
		check.NoError(t, err)
		return resp.GetNode().GetNamespaces()
	}
	if got := bind("shop", "dev", "shop"); !slices.Equal(got, []string{"dev", "shop"}) {
		t.Errorf("bound to %q", got)
	}
	h.putNode(t, "n2")
	_, err = cluster.Apply(h.ctx, h.ledger,
		command.Start(claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "x"}, Node: "n2"}, nil))
	if !errors.Is(err, claim.ErrUnbound) {
		t.Errorf("a workload of another namespace starts on a bound node: %v", err)
	}
	if got := bind(); len(got) > 0 {
		t.Errorf("still bound to %q", got)
	}

	// A second drain returns the first one.
	for range 2 {
		drain := check.Must(h.client.Nodes.DrainNode(h.ctx, &hostv1.DrainNodeRequest{Name: "n2", Enable: true}))(t)
		if d := drain.GetNode().GetDrain(); d.GetStartedAt() == nil || d.GetBy() == "" || d.GetDoneAt() != nil {
			t.Errorf("drain %v", d)
		}
	}
	got := check.Must(h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "n2"}))(t)
	if w := got.GetWorkloads(); len(w) != 1 || w[0].GetId() != "w" || w[0].GetStatus() != "running" ||
		got.GetNode().GetDrain() == nil {
		t.Errorf("node %v", got)
	}
	end, err := h.client.Nodes.DrainNode(h.ctx, &hostv1.DrainNodeRequest{Name: "n2"})
	check.NoError(t, err)
	if end.GetNode().GetDrain() != nil {
		t.Errorf("it is still drained: %v", end)
	}

	purge := func(name string, force bool) (*hostv1.PurgeNodeResponse, error) {
		return h.client.Nodes.PurgeNode(h.ctx, &hostv1.PurgeNodeRequest{Name: name, Force: force})
	}
	_, err = purge("n1", true)
	wantError(t, err, connect.CodeFailedPrecondition, `"n1"`, "is up")
	_, err = purge("nobody", false)
	wantError(t, err, connect.CodeNotFound, `"nobody"`)
	_, err = purge("n2", false)
	wantError(t, err, connect.CodeFailedPrecondition, "pannier node purge -force n2")
	gone, err := purge("n2", true)
	check.NoError(t, err)
	if len(gone.GetEnded()) != 1 || gone.GetEnded()[0] != "default/w" {
		t.Errorf("purged %v", gone)
	}
	_, err = h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "n2"})
	wantError(t, err, connect.CodeNotFound, `"n2"`)
	_, err = h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "a/b"})
	wantError(t, err, connect.CodeInvalidArgument, "name")
}

// A purge of a node that is down takes back what the node has left in Consul, and is refused while that does not work,
// unless it is forced.
func TestAPurgeTakesBackWhatIsInConsul(t *testing.T) {
	h := openHost(t)
	purge := func(force bool) (*hostv1.PurgeNodeResponse, error) {
		return h.client.Nodes.PurgeNode(h.ctx, &hostv1.PurgeNodeRequest{Name: "n2", Force: force})
	}
	down := func() {
		t.Helper()
		_, err := cluster.Apply(h.ctx, h.ledger, &command.PutNode{Node: claim.Node{Name: "n2"}})
		check.NoError(t, err)
		_, err = cluster.SetNodeStatus(h.ctx, h.ledger, "n2", claim.NodeDown, "")
		check.NoError(t, err)
	}
	down()
	h.consul.forgetErr = errors.New("Consul is away")
	_, err := purge(false)
	wantError(t, err, connect.CodeUnknown, "Consul is away", "pannier node purge -force n2")
	_, err = h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "n2"})
	check.NoError(t, err)
	forced := check.Must(purge(true))(t)
	if forced.GetLeft() != "Consul is away" {
		t.Errorf("a forced purge answers %v", forced)
	}
	h.consul.forgetErr = nil
	down()
	if gone, err := purge(false); err != nil || gone.GetLeft() != "" {
		t.Errorf("%v, %v", gone, err)
	}
	if got := h.consul.forgotten; !slices.Equal(got, []string{"n2", "n2", "n2"}) {
		t.Errorf("forgotten were %q", got)
	}
}

// TestANodeThatComesBackIsNotPurged: the node registers while the purge waits for the release of a claim.
func TestANodeThatComesBackIsNotPurged(t *testing.T) {
	h := openHost(t)
	h.putNode(t, "n2")
	volume := claim.VolumeRef{Namespace: "default", ID: "v"}
	_, err := cluster.Apply(h.ctx, h.ledger, &command.RegisterVolume{Volume: claim.Volume{
		Definition: claim.Definition{
			VolumeRef: volume, Name: "v", PluginID: "d", ExternalID: "x",
			Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
		},
	}})
	check.NoError(t, err)
	w := claim.WorkloadRef{Namespace: "default", ID: "w"}
	_, err = cluster.Apply(h.ctx, h.ledger, command.Start(claim.Run{Ref: w, Node: "n2"}, []claim.Claim{{
		Volume: volume, Mode: claim.Write, AccessMode: claim.SingleNodeWriter,
		AttachmentMode: claim.FileSystem,
	}}))
	check.NoError(t, err)
	purged := make(chan error, 1)
	go func() {
		_, err := h.client.Nodes.PurgeNode(h.ctx, &hostv1.PurgeNodeRequest{Name: "n2", Force: true})
		purged <- err
	}()
	for down := false; !down; {
		changed := h.ledger.Watch(h.ctx, state.TopicNode("n2"))
		check.NoError(t, h.ledger.Read(h.ctx, func(tx *state.ReadTx) error {
			n, err := tx.Node("n2")
			down = n.Status == claim.NodeDown
			return err
		}))
		if !down {
			<-changed
		}
	}
	h.putNode(t, "n2")
	_, err = cluster.Apply(h.ctx, h.ledger,
		&command.AdvanceClaims{Items: []command.Advance{{Volume: volume, Workload: w, To: claim.Freed}}})
	check.NoError(t, err)
	wantError(t, <-purged, connect.CodeFailedPrecondition, `"n2"`, "come back")
	_, err = h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "n2"})
	check.NoError(t, err)
}

func TestANodeThatIsHeardFromIsNotPurged(t *testing.T) {
	h := openHost(t, func(c *parts) {
		c.Heard = func(node string) (lastHeard, keepsTo time.Time) {
			if node == "n2" {
				lastHeard, keepsTo = time.Now(), time.Now().Add(time.Minute)
			}
			return lastHeard, keepsTo
		}
	})
	for _, name := range []string{"n2", "n3"} {
		h.putNode(t, name)
		_, err := h.client.Nodes.PurgeNode(h.ctx, &hostv1.PurgeNodeRequest{Name: name, Force: true})
		wantError(t, err, connect.CodeFailedPrecondition, "heard from", "pannier node drain")
	}
	_, err := cluster.SetNodeStatus(h.ctx, h.ledger, "n3", claim.NodeDisconnected, "")
	check.NoError(t, err)
	_, err = h.client.Nodes.PurgeNode(h.ctx, &hostv1.PurgeNodeRequest{Name: "n3", Force: true})
	check.NoError(t, err)
	got := check.Must(h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "n2"}))(t)
	if got.GetNode().GetLastHeard() == nil || got.GetNode().GetLetGoAt() == nil {
		t.Errorf("node %v", got)
	}
}

// A node's status tells of the workloads and claims of those namespaces alone that its caller may see.
func TestNodeIsFiltered(t *testing.T) {
	h := openACLHost(t)
	h.create(t, spec("v", inNamespace("shop")))
	h.putNode(t, "n2")
	_, err := cluster.Apply(h.ctx, h.ledger, command.Start(
		claim.Run{Ref: claim.WorkloadRef{Namespace: "shop", ID: "w"}, Node: "n2"}, []claim.Claim{{
			Volume: claim.VolumeRef{Namespace: "shop", ID: "v"}, Mode: claim.Write, AccessMode: claim.SingleNodeWriter,
			AttachmentMode: claim.FileSystem,
		}}))
	check.NoError(t, err)
	for namespace, sees := range map[string]int{"shop": 1, "dev": 0} {
		client := h.as(t, namespace, `namespace "`+namespace+`" { policy = "read" }`+"\n"+`node { policy = "read" }`)
		got := check.Must(client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "n2"}))(t)
		if len(got.GetWorkloads()) != sees || len(got.GetClaims()) != sees {
			t.Errorf("who may read namespace %q sees %v", namespace, got)
		}
	}
}
