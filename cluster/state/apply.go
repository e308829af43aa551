package state

import (
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Entry is one entry of the log. Command is nil if the entry means nothing to the ledger, and only its index
// counts.
type Entry struct {
	Index   uint64
	Term    uint64 // of the leader that wrote the entry
	Command command.Command
}

// Outcome is the result of an entry (a result type of the command package) or the refusal. It is empty for an
// entry that was applied before.
type Outcome struct {
	Result any
	Err    error
}

// A transaction ends when it holds batchBytes or batchWrites; the rest of the batch goes into the next one. A command
// that writes more than commandBytes or commandWrites is refused. Together they stay below the limits of Badger: 15% of
// a memtable, and a write for each 96 bytes of that. Beyond these, every server would stop at the command.
const (
	batchBytes    = 128 << 10
	batchWrites   = 2048
	commandBytes  = 480 << 10
	commandWrites = 4096
)

// Apply applies entries in order, in as few transactions as possible. The error is a fault of the store: entries
// applied before it are kept, the others are not applied, and the store accepts no more entries.
func (s *Store) Apply(entries []Entry) ([]Outcome, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.Err(); err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(entries))
	for done := 0; done < len(entries); {
		n, err := s.applySome(entries[done:], outcomes[done:])
		if err != nil {
			return nil, s.stop(entries[done+n].Index, err)
		}
		done += n
	}
	return outcomes, nil
}

// Stop makes the store accept no more entries, because the entry at index cannot be understood.
func (s *Store) Stop(index uint64, reason error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.Err(); err != nil {
		return err
	}
	return s.stop(index, reason)
}

func (s *Store) stop(index uint64, reason error) error {
	err := fmt.Errorf("%w: apply log entry %d: %w", command.ErrStopped, index, reason)
	s.fault.Store(&err)
	return err
}

// applySome applies as many entries as fit into one transaction, and at least one. After a fault, n is the entry
// at which it happened.
func (s *Store) applySome(entries []Entry, outcomes []Outcome) (n int, err error) {
	g, release, err := s.acquire()
	if err != nil {
		return 0, err
	}
	defer release()
	tx := newWriteTx(g.db)
	tx.pruned = &s.pruned
	defer tx.txn.Discard()
	applied := s.applied.Load()
	for n < len(entries) && tx.bytes < batchBytes && tx.writes < batchWrites {
		if e := entries[n]; e.Index > applied {
			tx.index, tx.term = e.Index, e.Term
			result, err := tx.applyWhole(e.Command)
			if isFault(err) {
				return n, err
			}
			outcomes[n] = Outcome{result, err}
			if err != nil {
				outcomes[n].Result = nil
			}
			applied = e.Index
		}
		n++
	}
	if applied == s.applied.Load() {
		return n, nil
	}
	tx.setApplied(applied)
	if err := tx.commit(); err != nil {
		return 0, err
	}
	g.committed()
	g.compactor.Wrote()
	s.applied.Store(applied)
	s.changes.note(tx.topics, applied)
	s.watchers.publish(tx.topics)
	return n, nil
}

// applyWhole applies a command, or nothing of it if it writes too much for one transaction.
func (tx *writeTx) applyWhole(c command.Command) (any, error) {
	bytes, writes, pruned := tx.bytes, tx.writes, *tx.pruned
	tx.over.begin()
	result, err := tx.apply(c)
	if tx.bytes-bytes > commandBytes || tx.writes-writes > commandWrites {
		result, err = nil, fmt.Errorf("%w: it writes %d bytes and %d keys, at most %d and %d are possible at once",
			command.ErrTooLarge, tx.bytes-bytes, tx.writes-writes, commandBytes, commandWrites)
		tx.over.rollback()
		tx.bytes, tx.writes, *tx.pruned = bytes, writes, pruned
	}
	return result, err
}

// decide applies a command without regard to its key.
func (tx *writeTx) decide(c command.Command) (any, error) {
	result, err := command.Apply(applier{tx, volumeWrites{tx}, nodeWrites{tx}, settingWrites{tx}, aclWrites{tx}}, c)
	if errors.Is(err, command.ErrUnknownCommand) {
		return nil, fault("%w", err)
	}
	return result, err
}

// checkCount refuses a command or a query with more items in a field than are allowed.
func checkCount(object, field string, have, limit int) error {
	if have > limit {
		problem := fmt.Sprintf("are %d: at most %d are allowed", have, limit)
		return &claim.FieldError{Object: object, Field: field, Problem: problem}
	}
	return nil
}
