package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/state"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// How long a query waits for a change.
const (
	defaultWait = 5 * time.Minute
	maxWait     = 10 * time.Minute
)

// reader is a query with options for reading the ledger.
type reader interface {
	proto.Message
	GetRead() *hostv1.ReadOptions
}

// read reads the ledger for a query. If the query has an index it waits until one of the topics has changed after it,
// or for the query's wait. fn reads everything that is in the answer, and topics cover it. Only a leader can answer,
// unless the query accepts a stale answer.
func (s *Server) read(ctx context.Context, query reader, topics []state.Topic,
	fn func(tx *state.ReadTx) error,
) (*hostv1.ReadMeta, error) {
	how := query.GetRead()
	wait, err := waitOf(how)
	if err != nil {
		return nil, err
	}
	meta := &hostv1.ReadMeta{KnownLeader: true, Age: durationpb.New(0)}
	read := s.cfg.Ledger.ReadChanged
	if how.GetStale() {
		read = s.cfg.Ledger.ReadHere
		// Taken before reading, so that the data is at most this old.
		now := s.cfg.Ledger.Stats()
		meta.KnownLeader, meta.Age = now.LeaderName != "", durationpb.New(max(now.Age, 0))
	}
	index, err := read(ctx, cluster.Blocking{MinIndex: how.GetIndex(), Wait: wait}, topics, fn)
	meta.Index = max(index, 1) // a next query with 0 would not wait
	return meta, err
}

// reading reads something of the ledger.
func reading[T any](ctx context.Context, s *Server, of func(tx *state.ReadTx) (T, error)) (got T, err error) {
	err = s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
		got, err = of(tx)
		return err
	})
	return got, err
}

func waitOf(how *hostv1.ReadOptions) (time.Duration, error) {
	if how.GetWait() == nil {
		return defaultWait, nil
	}
	wait := how.GetWait().AsDuration()
	if err := how.GetWait().CheckValid(); err != nil || wait < 0 || wait > maxWait {
		return 0, invalid("query", "read.wait", fmt.Sprintf("must be 0 to %s", maxWait))
	}
	return wait, nil
}

// allClaims change with every claim: claims are taken when a workload starts, and released when it ends.
var allClaims = []state.Topic{state.TopicWorkloads, state.TopicReleasing}

// watched are Watch's topics by name.
var watched = map[string][]state.Topic{
	"volumes":   {state.TopicVolumes},
	"claims":    allClaims,
	"nodes":     {state.TopicNodes},
	"workloads": {state.TopicWorkloads},
	"drivers":   {state.TopicDrivers},
}

// Watch sends a message at once, and whenever one of the topics may have changed. Changes while a message is sent are
// reported by one message.
func (s systemService) Watch(ctx context.Context, req *hostv1.WatchRequest,
	stream *connect.ServerStream[hostv1.WatchResponse],
) error {
	var topics []state.Topic
	for _, name := range req.GetTopics() {
		if watched[name] == nil {
			return invalid("watch", "topics",
				fmt.Sprintf("has %q, which is none of %s", shortened(name), strings.Join(slices.Sorted(maps.Keys(watched)), ", ")))
		}
		topics = append(topics, watched[name]...)
	}
	if len(topics) == 0 {
		return invalid("watch", "topics", "are missing: some of "+strings.Join(slices.Sorted(maps.Keys(watched)), ", "))
	}
	for told := uint64(0); ; {
		// Only the index is read.
		index, err := s.cfg.Ledger.ReadChanged(ctx, cluster.Blocking{MinIndex: told, Wait: maxWait}, topics,
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
