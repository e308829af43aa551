package fsm_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/fsm"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
)

func open(t *testing.T) (*fsm.FSM, *state.Store) {
	t.Helper()
	s, err := state.Open(t.TempDir(), nil)
	check.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return fsm.New(s), s
}

func entry(t *testing.T, index uint64, c command.Command) *raft.Log {
	t.Helper()
	data, err := command.Encode(c)
	check.NoError(t, err)
	return &raft.Log{Index: index, Type: raft.LogCommand, Data: data}
}

func start(t *testing.T, index uint64, id string) *raft.Log {
	return entry(t, index, &command.StartWorkload{Ref: claim.WorkloadRef{Namespace: "default", ID: id}, Node: "n"})
}

func outcome(t *testing.T, response any) state.Outcome {
	t.Helper()
	o, ok := response.(state.Outcome)
	if !ok {
		t.Fatalf("the response is %T", response)
	}
	return o
}

func TestBatch(t *testing.T) {
	f, s := open(t)
	responses := f.ApplyBatch([]*raft.Log{
		start(t, 5, "a"),
		{Index: 6, Type: raft.LogConfiguration, Data: []byte("not a command")},
		start(t, 8, "b"),
	})
	if len(responses) != 3 || s.AppliedIndex() != 8 {
		t.Fatalf("%d responses, applied %d", len(responses), s.AppliedIndex())
	}
	for i, response := range responses {
		if o := outcome(t, response); o.Err != nil {
			t.Errorf("entry %d: %v", i, o.Err)
		}
	}
}

// TestMalformed: an entry that every server refuses is skipped.
func TestMalformed(t *testing.T) {
	f, s := open(t)
	responses := f.ApplyBatch([]*raft.Log{
		start(t, 1, "a"),
		{Index: 2, Type: raft.LogCommand, Data: []byte{1, 3, '{'}},
		start(t, 3, "b"),
	})
	if err := outcome(t, responses[1]).Err; !errors.Is(err, command.ErrMalformed) {
		t.Errorf("got %v", err)
	}
	if o := outcome(t, responses[2]); o.Err != nil || s.AppliedIndex() != 3 || s.Err() != nil {
		t.Errorf("after it: %+v, applied %d, %v", o, s.AppliedIndex(), s.Err())
	}
}

// TestNextLevel: the FSM stops before an entry of the next level, which a newer server may understand.
func TestNextLevel(t *testing.T) {
	f, s := open(t)
	responses := f.ApplyBatch([]*raft.Log{
		start(t, 1, "a"),
		{Index: 2, Type: raft.LogCommand, Data: []byte{command.Level + 1, 3}},
		start(t, 3, "b"),
	})
	if o := outcome(t, responses[0]); o.Err != nil {
		t.Errorf("before it: %v", o.Err)
	}
	for _, response := range responses[1:] {
		if err := outcome(t, response).Err; !errors.Is(err, command.ErrStopped) ||
			!errors.Is(err, command.ErrUnknownCommand) {
			t.Errorf("got %v", err)
		}
	}
	if s.AppliedIndex() != 1 {
		t.Errorf("applied %d", s.AppliedIndex())
	}
	if err := outcome(t, f.Apply(start(t, 4, "c"))).Err; !errors.Is(err, command.ErrStopped) {
		t.Errorf("later: %v", err)
	}
	if _, err := f.Snapshot(); !errors.Is(err, command.ErrStopped) {
		t.Errorf("snapshot: %v", err)
	}
}

// sink is a raft.SnapshotSink in memory that can be made to fail.
type sink struct {
	bytes.Buffer
	fails             bool
	closed, cancelled bool
}

func (s *sink) Write(p []byte) (int, error) {
	if s.fails {
		return 0, io.ErrShortWrite
	}
	return s.Buffer.Write(p)
}
func (s *sink) ID() string    { return "sink" }
func (s *sink) Close() error  { s.closed = true; return nil }
func (s *sink) Cancel() error { s.cancelled = true; return nil }

func TestSnapshot(t *testing.T) {
	f, _ := open(t)
	f.Apply(start(t, 1, "a"))
	persist := func(to *sink) error {
		t.Helper()
		snapshot, err := f.Snapshot()
		check.NoError(t, err)
		defer snapshot.Release()
		return snapshot.Persist(to)
	}
	full := &sink{fails: true}
	if err := persist(full); err == nil || !full.cancelled || full.closed {
		t.Errorf("a full disk: %v, cancelled: %v, closed: %v", err, full.cancelled, full.closed)
	}
	good := &sink{}
	if err := persist(good); err != nil || !good.closed {
		t.Fatalf("%v, closed: %v", err, good.closed)
	}
	other, s := open(t)
	check.NoError(t, other.Restore(io.NopCloser(good)))
	if s.AppliedIndex() != 1 {
		t.Errorf("restored at %d", s.AppliedIndex())
	}
}
