package site

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

type workloadsData struct {
	// Node is the one whose agent answers.
	Node   string
	Here   []*hostv1.Workload
	Others []elsewhere
	// OthersWhy says why those of other nodes are not shown.
	OthersWhy string
	Ended     int
}

// elsewhere is a workload of another node.
type elsewhere struct {
	*hostv1.NodeWorkload
	Node string
}

// asksNodes bounds how many nodes are asked for their workloads at a time, and in all.
const asksNodes, maxAskedNodes = 8, 200

func (s *Site) workloads(ctx context.Context, _ user, _ *http.Request) (any, error) {
	res, err := s.host.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: "*"})
	if err != nil {
		return nil, err
	}
	d := workloadsData{Node: res.GetNode(), Here: res.GetWorkloads()}
	slices.SortStableFunc(d.Here, func(a, b *hostv1.Workload) int {
		return cmp.Or(cmp.Compare(rank(a.GetState()), rank(b.GetState())),
			b.GetStartedAt().AsTime().Compare(a.GetStartedAt().AsTime()))
	})
	for _, w := range d.Here {
		if w.GetState() == "stopped" {
			d.Ended++
		}
	}
	d.Others, err = s.host.elsewhere(ctx, d.Node)
	if err != nil && connect.CodeOf(err) != connect.CodePermissionDenied {
		return nil, err
	}
	d.OthersWhy = reason(err)
	return d, nil
}

// rank orders states: first what needs a look.
func rank(state string) int {
	return slices.Index([]string{"failed", "unknown", "stopping", "starting", "running", "stopped"}, state)
}

// elsewhere lists the workloads of other nodes.
func (h host) elsewhere(ctx context.Context, here string) (all []elsewhere, err error) {
	nodes, err := h.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(asksNodes)
	for n, node := range nodes.GetNodes() {
		if node.GetName() == here || n >= maxAskedNodes {
			continue
		}
		asking.Go(func() error {
			res, err := h.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: node.GetName()})
			if err != nil {
				return nil // it was purged
			}
			mu.Lock()
			defer mu.Unlock()
			for _, w := range res.GetWorkloads() {
				all = append(all, elsewhere{w, node.GetName()})
			}
			return nil
		})
	}
	_ = asking.Wait() // nothing returns an error
	slices.SortFunc(all, func(a, b elsewhere) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.GetNamespace(), b.GetNamespace()),
			strings.Compare(a.GetId(), b.GetId()))
	})
	return all, nil
}

type workloadData struct {
	*hostv1.Workload
	Events    []event
	EventsWhy string
}

func (s *Site) workload(ctx context.Context, _ user, r *http.Request) (any, error) {
	node, namespace, id := nodeOf(r), r.PathValue("namespace"), r.PathValue("id")
	res, err := s.host.Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Namespace: namespace, Id: id, Node: node})
	if err != nil {
		return nil, err
	}
	d := workloadData{Workload: res.GetWorkload()}
	name := qualified(namespace, id)
	d.Events, d.EventsWhy = s.host.eventsOf(ctx, node, []string{"workload", "service", "claim"}, func(e *hostv1.Event) bool {
		return e.GetTopic() == "workload" && e.GetSubject() == name || e.GetDetails()["workload"] == name
	})
	return d, nil
}
