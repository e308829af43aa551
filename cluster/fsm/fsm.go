// Package fsm connects raft to the ledger: it decodes log entries, passes them to cluster/state in batches, and
// takes and restores snapshots. It has no rules, no clock and no randomness of its own.
package fsm

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// FSM applies the log to a store. The response to an entry is a state.Outcome.
type FSM struct {
	store *state.Store
}

var _ raft.BatchingFSM = (*FSM)(nil)

// New makes the FSM of a store, which the caller closes.
func New(store *state.Store) *FSM { return &FSM{store} }

// Apply applies one entry.
func (f *FSM) Apply(log *raft.Log) any { return f.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch applies entries in as few transactions as possible.
//
// A malformed entry is refused, as every server refuses it. An entry of a newer version is not refused, since
// another server may know it: this server stops before it.
func (f *FSM) ApplyBatch(logs []*raft.Log) []any {
	var (
		entries   = make([]state.Entry, 0, len(logs))
		malformed = map[int]error{}
		stop      error
	)
	for i, log := range logs {
		entry := state.Entry{Index: log.Index, Term: log.Term}
		if log.Type == raft.LogCommand && log.Index > f.store.AppliedIndex() {
			c, err := command.Decode(log.Data)
			if errors.Is(err, command.ErrUnknownCommand) {
				stop = err
				break
			}
			if err != nil {
				malformed[i] = err
			}
			entry.Command = c
		}
		entries = append(entries, entry)
	}
	outcomes, err := f.store.Apply(entries)
	if err == nil && stop != nil {
		err = f.store.Stop(logs[len(entries)].Index, stop)
	}
	responses := make([]any, len(logs))
	for i := range responses {
		switch {
		case malformed[i] != nil:
			responses[i] = state.Outcome{Err: malformed[i]}
		case i < len(outcomes):
			responses[i] = outcomes[i]
		default:
			responses[i] = state.Outcome{Err: err}
		}
	}
	return responses
}

// Snapshot takes a snapshot that can be written out while entries are applied.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	s, err := f.store.Snapshot()
	if err != nil {
		return nil, err
	}
	return &snapshot{s}, nil
}

// Restore replaces the store's content by a snapshot.
func (f *FSM) Restore(r io.ReadCloser) error {
	return errors.Join(f.store.Restore(r), r.Close())
}

type snapshot struct{ *state.Snapshot }

// Persist writes the snapshot into raft's sink.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.Write(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}
