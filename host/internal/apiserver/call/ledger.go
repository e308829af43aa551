package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/state"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// How long a query waits for a change.
const (
	defaultWait = 5 * time.Minute
	// MaxWait bounds a wait.
	MaxWait = 10 * time.Minute
)

// StatsTimeout bounds the calls for a volume's usage and condition and for a driver's room, which are left out if the
// driver is slower.
const StatsTimeout = 2 * time.Second

// AllClaims change with every claim: claims are taken when a workload starts, and released when it ends.
var AllClaims = []state.Topic{state.TopicWorkloads, state.TopicReleasing}

// Ledger reads the cluster's replicated state (cluster.Node).
type Ledger interface {
	// Ready is closed when the ledger can be read.
	Ready() <-chan struct{}
	Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
	// ReadLatest, ReadChanged and ReadHere differ in how recent the data is, and whether they wait for changes.
	ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error
	ReadChanged(ctx context.Context, b cluster.Blocking, topics []state.Topic,
		fn func(tx *state.ReadTx) error) (index uint64, err error)
	ReadHere(ctx context.Context, b cluster.Blocking, topics []state.Topic, fn func(tx *state.ReadTx) error) (index uint64,
		err error)
	Stats() cluster.Stats
}

// Here reports whether this agent is a server whose ledger has caught up since its start. ledger is nil if it is none.
func Here(ledger Ledger) bool {
	if ledger == nil {
		return false
	}
	select {
	case <-ledger.Ready():
		return true
	default:
		return false
	}
}

// Query is a query with options for reading the ledger.
type Query interface {
	proto.Message
	GetRead() *hostv1.ReadOptions
}

// Read reads the ledger for a query. If the query has an index it waits until one of the topics has changed after it,
// or for the query's wait. fn reads everything that is in the answer, and topics cover it. Only a leader can answer,
// unless the query accepts a stale answer.
func Read(ctx context.Context, ledger Ledger, query Query, topics []state.Topic,
	fn func(tx *state.ReadTx) error,
) (*hostv1.ReadMeta, error) {
	how := query.GetRead()
	wait, err := waitOf(how)
	if err != nil {
		return nil, err
	}
	meta := &hostv1.ReadMeta{KnownLeader: true, Age: durationpb.New(0)}
	read := ledger.ReadChanged
	if how.GetStale() {
		read = ledger.ReadHere
		// Taken before reading, so that the data is at most this old.
		now := ledger.Stats()
		meta.KnownLeader, meta.Age = now.LeaderName != "", durationpb.New(max(now.Age, 0))
	}
	index, err := read(ctx, cluster.Blocking{MinIndex: how.GetIndex(), Wait: wait}, topics, fn)
	meta.Index = max(index, 1) // a next query with 0 would not wait
	return meta, err
}

// Reading reads something of the ledger.
func Reading[T any](ctx context.Context, ledger Ledger, of func(tx *state.ReadTx) (T, error)) (got T, err error) {
	err = ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
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
	if err := how.GetWait().CheckValid(); err != nil || wait < 0 || wait > MaxWait {
		return 0, Invalid("query", "read.wait", fmt.Sprintf("must be 0 to %s", MaxWait))
	}
	return wait, nil
}

// Found reports whether something was read; missing is the error of what does not exist.
func Found(err, missing error) (bool, error) {
	if errors.Is(err, missing) {
		return false, nil
	}
	return err == nil, err
}

// Latest reads something of the ledger as it is now.
func Latest[T any](ctx context.Context, ledger Ledger, of func(tx *state.ReadTx) (T, error)) (got T, err error) {
	err = ledger.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		got, err = of(tx)
		return err
	})
	return got, err
}

// Get reads one object of the ledger by its key.
func Get[K, T any](ctx context.Context, ledger Ledger, of func(*state.ReadTx, K) (T, error), key K) (T, error) {
	return Reading(ctx, ledger, func(tx *state.ReadTx) (T, error) { return of(tx, key) })
}
