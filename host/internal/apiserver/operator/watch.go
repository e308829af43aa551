package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// watched are Watch's topics by name.
var watched = map[string][]state.Topic{
	"volumes":   {state.TopicVolumes},
	"claims":    call.AllClaims,
	"nodes":     {state.TopicNodes},
	"workloads": {state.TopicWorkloads},
	"drivers":   {state.TopicDrivers},
}

// Watch sends a message at once, and whenever one of the topics may have changed. Changes while a message is sent are
// reported by one message.
func (h *Handler) Watch(ctx context.Context, req *hostv1.WatchRequest,
	stream *connect.ServerStream[hostv1.WatchResponse],
) error {
	var topics []state.Topic
	for _, name := range req.GetTopics() {
		if watched[name] == nil {
			return call.Invalid("watch", "topics",
				fmt.Sprintf("has %q, which is none of %s", call.Shortened(name), strings.Join(slices.Sorted(maps.Keys(watched)), ", ")))
		}
		topics = append(topics, watched[name]...)
	}
	if len(topics) == 0 {
		return call.Invalid("watch", "topics", "are missing: some of "+strings.Join(slices.Sorted(maps.Keys(watched)), ", "))
	}
	for told := uint64(0); ; {
		// Only the index is read.
		index, err := h.Ledger.ReadChanged(ctx, cluster.Blocking{MinIndex: told, Wait: call.MaxWait}, topics,
			func(*state.ReadTx) error { return nil })
		if err == nil && (told == 0 || index > told) {
			told = max(index, 1)
			err = stream.Send(&hostv1.WatchResponse{Index: index})
		}
		if err != nil {
			return err
		}
	}
}
