package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/dgraph-io/badger/v4"

	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
)

// recordPrefixes are the prefixes of the records; the first byte of each is the kind of its frames (backup.Records).
var recordPrefixes = []string{
	volumes, claims, workloads, nodes, drivers, identity, tokens, signingKey,
	aclPolicies, aclRoles, aclTokens, aclBootstrap, liveness, autopilot, secretsKeys, snapshots, keptResults, keyRotation,
	restoring,
}

// Snapshot is the ledger at one moment.
type Snapshot struct {
	txn     *badger.Txn
	release func()
}

// Snapshot takes a snapshot, which costs nothing: it is written out later, while entries may be applied. It
// refuses after a fault: raft would delete entries that this ledger does not have.
func (s *Store) Snapshot() (*Snapshot, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.Err(); err != nil {
		return nil, err
	}
	g, release, err := s.acquire()
	if err != nil {
		return nil, err
	}
	return &Snapshot{txn: g.db.NewTransaction(false), release: release}, nil
}

// Release frees the snapshot. It may be called once.
func (s *Snapshot) Release() {
	s.txn.Discard()
	s.release()
}

// Write writes the snapshot out.
func (s *Snapshot) Write(w io.Writer) error {
	out := bufio.NewWriterSize(w, 64<<10)
	tx := newReadTx(s.txn)
	index, err := tx.Index()
	if err != nil {
		return err
	}
	if _, err := out.Write(backup.SnapshotHead(index)); err != nil {
		return fmt.Errorf("write a snapshot of the ledger: %w", err)
	}
	for _, prefix := range recordPrefixes {
		err := tx.scan(span{base: prefix}, true, func(_ string, value []byte) error {
			return backup.WriteRecord(out, prefix[0], value)
		})
		if err != nil {
			return fmt.Errorf("write a snapshot of the ledger: %w", err)
		}
	}
	if err := errors.Join(out.WriteByte(backup.SnapshotEnd), out.Flush()); err != nil {
		return fmt.Errorf("write a snapshot of the ledger: %w", err)
	}
	return nil
}

// Reindex copies a snapshot and gives it another index, so that it is newer than any ledger that it replaces. Every
// node is to compare with it what runs there, before its next lease (claim.Node.LostIndex): workloads of the snapshot
// may have ended since. Marks are left out: the acts have ended since, and who repeats one might delete a volume that
// is in use by now.
// Everything is verified: the copy can be restored. It returns the index that the snapshot had. The error is
// backup.ErrBadSnapshot if it is not a snapshot.
func Reindex(w io.Writer, r io.Reader, index uint64) (before uint64, err error) {
	out := bufio.NewWriterSize(w, 64<<10)
	if _, err := out.Write(backup.SnapshotHead(index)); err != nil {
		return 0, fmt.Errorf("copy a snapshot of the ledger: %w", err)
	}
	before, err = backup.Records(r, func(kind byte, value []byte) (err error) {
		switch kind {
		case restoring[0]:
			return nil
		case nodes[0]:
			value, err = changed(value, func(n *claim.Node) { n.LostIndex = index })
		case volumes[0]:
			value, err = changed(value, func(v *claim.Volume) { v.Mark = nil })
		}
		if err != nil {
			return err
		}
		return backup.WriteRecord(out, kind, value)
	})
	if err == nil {
		err = errors.Join(out.WriteByte(backup.SnapshotEnd), out.Flush())
	}
	if err != nil {
		return 0, fmt.Errorf("copy a snapshot of the ledger: %w", err)
	}
	return before, nil
}

// changed returns a record with a change.
func changed[T any](value []byte, change func(*T)) ([]byte, error) {
	v, err := decode[T](value)
	if err != nil {
		return nil, err
	}
	change(&v)
	return codec.Marshal(v)
}
