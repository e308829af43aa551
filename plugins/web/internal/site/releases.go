package site

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// waiting is a claim whose release goes on, or a workload of this node whose release failed and is tried again.
type waiting struct {
	Namespace, Volume, Workload, Node string
	Driver                            string
	State                             string
	Since, NextTry                    *timestamppb.Timestamp
	Tries                             int32
	WaitsFor, Error, Next, Command    string
}

// What names it in a sentence.
func (w waiting) What() string {
	if w.Volume == "" {
		return "workload " + w.Workload
	}
	return "volume " + qualified(w.Namespace, w.Volume) + " on " + w.Node
}

// Of names what has to act next: the node, with its part of the driver. Nothing, once the node has done its part.
func (w waiting) Of() []string {
	if w.State == "node-detached" {
		return nil
	}
	return []string{nodeKey(w.Node), driverKey(w.Driver, w.Node)}
}

// maxExplained bounds how many releases are explained on a page: each one asks nodes and drivers. The oldest are.
const maxExplained = 20

// waiting lists the releases that wait, oldest first: those of the whole cluster, and this node's failed ones.
func (h host) waiting(ctx context.Context) (all []waiting, err error) {
	volumes, err := h.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{State: "releasing"})
	if err != nil {
		return nil, err
	}
	for _, v := range volumes.GetVolumes() {
		for _, c := range v.GetClaims() {
			if c.GetState() != "taken" {
				all = append(all, waiting{
					Namespace: v.GetSpec().GetNamespace(), Volume: v.GetSpec().GetId(), Workload: c.GetWorkload(), Node: c.GetNode(),
					State: c.GetState(), Driver: v.GetSpec().GetPluginId(), Since: cmp.Or(c.GetModifiedAt(), c.GetTakenAt()),
					Error: c.GetLastError(), NextTry: c.GetNextTryAt(),
				})
			}
		}
	}
	oldestFirst(all)
	var explaining sync.WaitGroup
	for n := range all[:min(len(all), maxExplained)] {
		explaining.Go(func() { h.explain(ctx, &all[n]) })
	}
	explaining.Wait()
	status, err := h.Agent.Status(ctx, &hostv1.StatusRequest{})
	if err != nil && connect.CodeOf(err) != connect.CodePermissionDenied {
		return nil, err
	}
	for _, r := range status.GetReleases() {
		namespace, workload := unqualified(r.GetWorkload())
		if slices.ContainsFunc(all, func(w waiting) bool {
			return w.Namespace == namespace && w.Workload == workload && w.Node == status.GetName()
		}) {
			continue // its volumes are there
		}
		all = append(all, waiting{
			Namespace: namespace, Workload: workload, Node: status.GetName(), State: "stopping", Since: r.GetSince(),
			Tries: r.GetTries(), Error: r.GetError(), NextTry: r.GetNextTryAt(), Command: r.GetCommand(),
		})
	}
	oldestFirst(all)
	return all, nil
}

func oldestFirst(all []waiting) {
	slices.SortStableFunc(all, func(a, b waiting) int { return a.Since.AsTime().Compare(b.Since.AsTime()) })
}

// explain adds what a claim waits for. Where that is not known, it stays as it is.
func (h host) explain(ctx context.Context, w *waiting) {
	res, err := h.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{Namespace: w.Namespace, Id: w.Volume})
	if err != nil {
		return
	}
	for _, c := range res.GetClaims() {
		if c.GetClaim().GetWorkload() == w.Workload && c.GetClaim().GetNode() == w.Node {
			w.WaitsFor, w.Next, w.Command, w.Tries = c.GetWaitsFor(), c.GetNext(), c.GetCommand(), c.GetTries()
			w.Error, w.NextTry = cmp.Or(c.GetLastError(), w.Error), cmp.Or(c.GetNextTryAt(), w.NextTry)
		}
	}
}

func (s *Site) releases(ctx context.Context, _ user, _ *http.Request) (any, error) {
	return s.host.waiting(ctx)
}

// objectlessURL is the address of the page of what has no namespace.
func objectlessURL(kind, name string) string { return "/" + kind + "/" + url.PathEscape(name) }
