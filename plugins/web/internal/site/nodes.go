package site

import (
	"context"
	"net/http"
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// leasedNode is a node with what is left of its lease.
type leasedNode struct{ *hostv1.Node }

// Left is the part of the node's lease that is left, in percent; -1: it needs none.
func (n leasedNode) Left() int {
	if n.GetLetGoAt() == nil || n.GetLastHeard() == nil {
		return -1
	}
	whole := n.GetLetGoAt().AsTime().Sub(n.GetLastHeard().AsTime())
	return percent(time.Until(n.GetLetGoAt().AsTime()).Milliseconds(), whole.Milliseconds())
}

func (s *Site) nodes(ctx context.Context, _ user, _ *http.Request) (any, error) {
	res, err := s.host.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
	if err != nil {
		return nil, err
	}
	return res.GetNodes(), nil
}

type nodeData struct {
	leasedNode
	Runs []*hostv1.Workload
	Held []*hostv1.Claim
}

func (s *Site) node(ctx context.Context, _ user, r *http.Request) (any, error) {
	res, err := s.host.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: r.PathValue("name")})
	if err != nil {
		return nil, err
	}
	return nodeData{leasedNode{res.GetNode()}, ofLedger(res), res.GetClaims()}, nil
}
