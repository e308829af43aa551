package site

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

type workloadsData struct {
	// All are the cluster's workloads: the ones that need a look come first.
	All []*hostv1.Workload
	// Silent are the nodes whose workloads are not shown, with the reason.
	Silent []string
}

// workloads shows the workloads of all nodes. The first answer has what the ledger knows of other nodes, and the stream
// what they say themselves.
func (s *Site) workloads(ctx context.Context, _ user, r *http.Request) (any, error) {
	res, err := s.host.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: "*"})
	if err != nil {
		return nil, err
	}
	d := workloadsData{All: res.GetWorkloads()}
	names, _ := s.host.choices(ctx) // a single host has none
	names = slices.DeleteFunc(names, func(name string) bool { return name == res.GetNode() })
	others(ctx, names[:min(len(names), maxOthers)], func(ctx context.Context, node string) ([]*hostv1.Workload, error) {
		known, err := s.host.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: node})
		if err != nil || !r.URL.Query().Has(liveParam) || known.GetNode().GetStatus() != readyNode {
			return ofLedger(known), err
		}
		res, err := s.host.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: "*", Node: node})
		if err == nil {
			return res.GetWorkloads(), nil
		}
		return ofLedger(known), nil // its page says why
	}, func(node string, answer []*hostv1.Workload, why string) {
		d.All = append(d.All, answer...)
		if why != "" {
			d.Silent = append(d.Silent, node+": "+why)
		}
	})
	byUrgency(d.All)
	slices.Sort(d.Silent)
	return d, nil
}

// ofLedger are the workloads of a node as the ledger knows them. Those of a node that is not heard from are not known.
func ofLedger(n *hostv1.GetNodeResponse) (all []*hostv1.Workload) {
	add := func(namespace, id, state, message string, since *timestamppb.Timestamp) {
		if status := n.GetNode().GetStatus(); status != readyNode {
			state, message = "unknown", "its node is "+status
		}
		if !slices.ContainsFunc(all, func(w *hostv1.Workload) bool {
			return w.GetSpec().GetNamespace() == namespace && w.GetSpec().GetId() == id
		}) {
			all = append(all, &hostv1.Workload{
				Spec: &hostv1.WorkloadSpec{Namespace: namespace, Id: id}, Node: n.GetNode().GetName(), State: state,
				Message: message, StartedAt: since,
			})
		}
	}
	for _, c := range n.GetClaims() {
		if c.GetState() != "taken" {
			add(c.GetNamespace(), c.GetWorkload(), "stopping", c.GetLastError(), c.GetTakenAt())
		}
	}
	for _, w := range n.GetWorkloads() {
		message := ""
		if len(w.GetAfter()) > 0 {
			message = "waits for " + strings.Join(w.GetAfter(), ", ")
		}
		add(w.GetNamespace(), w.GetId(), w.GetStatus(), message, w.GetCreatedAt())
	}
	byUrgency(all)
	return all
}

// byUrgency orders workloads: first what stops or is stuck, then the newest.
func byUrgency(all []*hostv1.Workload) {
	slices.SortStableFunc(all, func(a, b *hostv1.Workload) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.GetMessage(), a.GetMessage()),
			b.GetStartedAt().AsTime().Compare(a.GetStartedAt().AsTime()), cmp.Compare(a.GetSpec().GetId(), b.GetSpec().GetId()))
	})
}

// rank orders states: first what needs a look.
func rank(w *hostv1.Workload) int {
	if w.GetRelease() != nil {
		return -1 // its release is late
	}
	return slices.Index([]string{"stopping", "unknown", "waiting", "starting", "failed", "running", "stopped"}, w.GetState())
}

type workloadData struct {
	*hostv1.Workload
	Events    []event
	EventsWhy string
}

func (s *Site) workload(ctx context.Context, u user, r *http.Request) (any, error) {
	node, namespace, id := nodeOf(r), r.PathValue("namespace"), r.PathValue("id")
	res, err := s.host.Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Namespace: namespace, Id: id, Node: node})
	if err != nil {
		return nil, err
	}
	d := workloadData{Workload: res.GetWorkload()}
	name := qualified(namespace, id)
	d.Events, d.EventsWhy = s.eventsOf(ctx, u, r, []string{"workload", "service", "claim"}, func(e *hostv1.Event) bool {
		return e.GetTopic() == "workload" && e.GetSubject() == name || e.GetDetails()["workload"] == name
	})
	return d, nil
}
