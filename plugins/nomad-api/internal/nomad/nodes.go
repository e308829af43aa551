package nomad

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// node is a node, in a list and alone. Fields that Pannier has nothing for are empty.
type node struct {
	ID                    string
	Address               string
	HTTPAddr              string
	Attributes            map[string]string
	Datacenter            string
	Name                  string
	NodeClass             string
	NodePool              string
	Version               string
	Drain                 bool
	SchedulingEligibility string
	Status                string
	StatusDescription     string
	StatusUpdatedAt       int64 // seconds since 1970
	Drivers               map[string]struct{}
	CSIControllerPlugins  map[string]csiInfo
	CSINodePlugins        map[string]csiInfo
	indexes
}

func nodeOf(n *hostv1.Node) node {
	shown := node{
		ID: nodeID(n.GetName()), Address: n.GetAddress(), HTTPAddr: n.GetAddress(), Attributes: n.GetAttributes(),
		Datacenter: n.GetAttributes()["datacenter"],
		Name:       n.GetName(), NodePool: "default", Version: n.GetVersion(), Drain: n.GetDrain() != nil,
		SchedulingEligibility: "eligible", Status: n.GetStatus(), Drivers: map[string]struct{}{},
		CSIControllerPlugins: map[string]csiInfo{}, CSINodePlugins: map[string]csiInfo{},
		indexes: indexes{n.GetCreateIndex(), n.GetModifyIndex()},
	}
	if t := n.GetStatusAt(); t != nil {
		shown.StatusUpdatedAt = t.GetSeconds()
	}
	if !n.GetEligible() || shown.Drain {
		shown.SchedulingEligibility = "ineligible"
	}
	for _, d := range n.GetDrivers() {
		info := csiInfo{PluginID: d.GetId(), Healthy: d.GetHealthy(), HealthDescription: healthText(d.GetMessage())}
		if d.GetController() {
			shown.CSIControllerPlugins[d.GetId()] = info
		}
		if d.GetType() != "controller" {
			info.NodeInfo = &nodeInfo{ID: d.GetNodeId(), MaxVolumes: d.GetMaxVolumes()}
			if len(d.GetTopology()) > 0 {
				info.NodeInfo.AccessibleTopology = &topology{d.GetTopology()}
			}
			shown.CSINodePlugins[d.GetId()] = info
		}
	}
	return shown
}

// listNodes lists nodes by id.
func (s *server) listNodes(ctx context.Context, w http.ResponseWriter, r *http.Request) (answer, error) {
	q, err := readQuery(r)
	if err != nil {
		return answer{}, err
	}
	var all []*hostv1.Node
	meta, err := s.blocking(ctx, q, func(ctx context.Context, read *hostv1.ReadOptions) (*hostv1.ReadMeta, error) {
		res, err := s.api.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{Read: read})
		if err != nil {
			return nil, err
		}
		all = res.GetNodes()
		return res.GetMeta(), nil
	})
	if err != nil {
		return answer{}, err
	}
	shown := []node{}
	for _, n := range all {
		if strings.HasPrefix(nodeID(n.GetName()), q.prefix) {
			shown = append(shown, nodeOf(n))
		}
	}
	slices.SortFunc(shown, func(a, b node) int { return cmp.Compare(a.ID, b.ID) })
	return answer{page(w, q, shown, func(n node) string { return n.ID }), meta}, nil
}

// readNode reads one node, by its id.
func (s *server) readNode(ctx context.Context, _ http.ResponseWriter, r *http.Request) (answer, error) {
	q, err := readQuery(r)
	if err != nil {
		return answer{}, err
	}
	res, err := s.api.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
	if err != nil {
		return answer{}, err
	}
	want := r.PathValue("id")
	at := slices.IndexFunc(res.GetNodes(), func(n *hostv1.Node) bool { return nodeID(n.GetName()) == want })
	if at < 0 {
		return answer{}, notFound("node %q not found", want)
	}
	var got *hostv1.Node
	meta, err := s.blocking(ctx, q, func(ctx context.Context, read *hostv1.ReadOptions) (*hostv1.ReadMeta, error) {
		res, err := s.api.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: res.GetNodes()[at].GetName(), Read: read})
		if err != nil {
			return nil, err
		}
		got = res.GetNode()
		return res.GetMeta(), nil
	})
	if err != nil {
		return answer{}, err
	}
	return answer{nodeOf(got), meta}, nil
}
