package nomad

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// node is a node, in a list and alone: Address and Version are those of a list.
type node struct {
	*api.Node
	Address, Version string
}

// nodeOf shows a node without what Pannier has nothing for.
func nodeOf(n *hostv1.Node) node {
	shown := node{Address: n.GetAddress(), Version: n.GetVersion(), Node: &api.Node{
		ID: nodeID(n.GetName()), HTTPAddr: n.GetAddress(), Attributes: n.GetAttributes(),
		Datacenter: n.GetAttributes()["datacenter"], Name: n.GetName(), NodePool: "default", Drain: n.GetDrain() != nil,
		SchedulingEligibility: api.NodeSchedulingEligible, Status: n.GetStatus(), Drivers: map[string]*api.DriverInfo{},
		CSIControllerPlugins: map[string]*api.CSIInfo{}, CSINodePlugins: map[string]*api.CSIInfo{},
		CreateIndex: n.GetCreateIndex(), ModifyIndex: n.GetModifyIndex(),
	}}
	if t := n.GetStatusAt(); t != nil {
		shown.StatusUpdatedAt = t.GetSeconds()
	}
	if !n.GetEligible() || shown.Drain {
		shown.SchedulingEligibility = api.NodeSchedulingIneligible
	}
	for _, d := range n.GetDrivers() {
		info := api.CSIInfo{PluginID: d.GetId(), Healthy: d.GetHealthy(), HealthDescription: healthText(d.GetMessage())}
		if d.GetController() {
			controller := info
			shown.CSIControllerPlugins[d.GetId()] = &controller
		}
		if d.GetType() != "controller" {
			info.NodeInfo = &api.CSINodeInfo{ID: d.GetNodeId(), MaxVolumes: d.GetMaxVolumes()}
			if len(d.GetTopology()) > 0 {
				info.NodeInfo.AccessibleTopology = &api.CSITopology{Segments: d.GetTopology()}
			}
			shown.CSINodePlugins[d.GetId()] = &info
		}
	}
	return shown
}

// listNodes lists nodes by id.
func (s *server) listNodes(ctx context.Context, q query, _ *http.Request) (answer, error) {
	res, err := blocking(ctx, s, q, func(ctx context.Context, read *hostv1.ReadOptions) (*hostv1.ListNodesResponse,
		error,
	) {
		return s.api.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{Read: read})
	})
	if err != nil {
		return answer{}, err
	}
	shown := []node{}
	for _, n := range res.GetNodes() {
		if strings.HasPrefix(nodeID(n.GetName()), q.prefix) {
			shown = append(shown, nodeOf(n))
		}
	}
	slices.SortFunc(shown, func(a, b node) int { return cmp.Compare(a.ID, b.ID) })
	shown, next := page(q, shown, func(n node) string { return n.ID })
	return answer{shown, res.GetMeta(), next}, nil
}

// readNode reads one node, by its id.
func (s *server) readNode(ctx context.Context, q query, r *http.Request) (answer, error) {
	res, err := s.api.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
	if err != nil {
		return answer{}, err
	}
	want := r.PathValue("id")
	at := slices.IndexFunc(res.GetNodes(), func(n *hostv1.Node) bool { return nodeID(n.GetName()) == want })
	if at < 0 {
		return answer{}, notFound("node %q not found", want)
	}
	got, err := blocking(ctx, s, q, func(ctx context.Context, read *hostv1.ReadOptions) (*hostv1.GetNodeResponse,
		error,
	) {
		return s.api.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: res.GetNodes()[at].GetName(), Read: read})
	})
	if err != nil {
		return answer{}, err
	}
	return answer{value: nodeOf(got.GetNode()), meta: got.GetMeta()}, nil
}
