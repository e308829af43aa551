package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/leader/watcher"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Collector clears away what nothing needs any more (watcher.Watcher).
type Collector interface {
	Collect(ctx context.Context, dryRun bool) ([]watcher.Garbage, error)
}

// systemService serves pannier.host.v1.SystemService.
type systemService struct{ *Server }

// CollectGarbage clears away, now, what nothing needs any more.
func (s systemService) CollectGarbage(ctx context.Context, req *connect.Request[hostv1.CollectGarbageRequest]) (*connect.Response[hostv1.CollectGarbageResponse], error) {
	// What is old is decided by who leads.
	if err := s.cfg.Ledger.ReadLatest(ctx, func(*state.ReadTx) error { return nil }); err != nil {
		return nil, err
	}
	found, err := s.cfg.Collector.Collect(ctx, req.Msg.GetDryRun())
	if err != nil {
		return nil, err
	}
	resp := &hostv1.CollectGarbageResponse{}
	for _, g := range found {
		resp.Garbage = append(resp.Garbage, &hostv1.Garbage{
			Kind: string(g.Kind), Namespace: g.Namespace, Id: g.ID, Reason: g.Reason, Since: timestamp(g.Since),
		})
	}
	return connect.NewResponse(resp), nil
}

// watched are the topics of Watch by their names.
var watched = map[string][]state.Topic{
	"volumes":   {state.TopicVolumes},
	"claims":    allClaims,
	"nodes":     {state.TopicNodes},
	"workloads": {state.TopicWorkloads},
	"drivers":   {state.TopicDrivers},
}

// Watch tells at once, and whenever something of the topics may have changed. Changes that
// come while one is told are told as one.
func (s systemService) Watch(ctx context.Context, req *connect.Request[hostv1.WatchRequest], stream *connect.ServerStream[hostv1.WatchResponse]) error {
	var topics []state.Topic
	for _, name := range req.Msg.GetTopics() {
		if watched[name] == nil {
			return invalid("watch", "topics", fmt.Sprintf("has %q, which is none of %s", shortened(name), strings.Join(slices.Sorted(maps.Keys(watched)), ", ")))
		}
		topics = append(topics, watched[name]...)
	}
	if len(topics) == 0 {
		return invalid("watch", "topics", "are missing: some of "+strings.Join(slices.Sorted(maps.Keys(watched)), ", "))
	}
	for told := uint64(0); ; {
		// Which entries there are is all that is read.
		index, err := s.cfg.Ledger.ReadChanged(ctx, cluster.Blocking{MinIndex: told, Wait: maxWait}, topics, func(*state.ReadTx) error { return nil })
		if err == nil && (told == 0 || index > told) {
			told = max(index, 1)
			err = stream.Send(&hostv1.WatchResponse{Index: index})
		}
		if err != nil {
			return err
		}
	}
}
