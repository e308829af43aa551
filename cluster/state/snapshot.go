package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
)

// A snapshot is a header (magic, version, index of the last applied entry), the records in frames, and an end frame. It
// has only the records themselves: index keys are rebuilt, so they may change between versions. A frame is the first
// byte of the prefix, the length (uvarint) and the record. Its checksum is with the file: raft's in its store, a
// backup's in its header.
const (
	snapshotMagic   = "PANNIER-LEDGER\n"
	snapshotVersion = 1
	headerSize      = len(snapshotMagic) + 1 + 8
	frameEnd        = 0
	// maxRecord bounds the records that are read from a snapshot: bigger ones are never written.
	maxRecord = 4 << 20
)

// recordPrefixes are the prefixes of the records; the first byte of each is the kind of its frames.
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
	if s.broken != nil {
		return nil, s.broken
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
	header := append([]byte(snapshotMagic), snapshotVersion)
	if _, err := out.Write(binary.BigEndian.AppendUint64(header, index)); err != nil {
		return fmt.Errorf("write a snapshot of the ledger: %w", err)
	}
	for _, prefix := range recordPrefixes {
		err := tx.scan(span{base: prefix}, true, func(_ string, value []byte) error {
			head := binary.AppendUvarint([]byte{prefix[0]}, uint64(len(value)))
			_, err := out.Write(append(head, value...))
			return err
		})
		if err != nil {
			return fmt.Errorf("write a snapshot of the ledger: %w", err)
		}
	}
	if err := errors.Join(out.WriteByte(frameEnd), out.Flush()); err != nil {
		return fmt.Errorf("write a snapshot of the ledger: %w", err)
	}
	return nil
}

// ErrBadSnapshot says that the bytes are not a snapshot, or a damaged one.
var ErrBadSnapshot = errors.New("bad snapshot of the ledger")

// SnapshotIndex reads the index of the last entry in a snapshot.
func SnapshotIndex(r io.Reader) (uint64, error) {
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(r, header); err != nil {
		return 0, fmt.Errorf("%w: header: %w", ErrBadSnapshot, err)
	}
	if string(header[:len(snapshotMagic)]) != snapshotMagic {
		return 0, fmt.Errorf("%w: it does not begin as one", ErrBadSnapshot)
	}
	if v := header[len(snapshotMagic)]; v != snapshotVersion {
		return 0, fmt.Errorf("%w: version %d, this program knows %d", ErrBadSnapshot, v, snapshotVersion)
	}
	return binary.BigEndian.Uint64(header[len(snapshotMagic)+1:]), nil
}

// readSnapshot verifies a snapshot while it passes its records on, and returns its index. A record is valid during
// the call only.
func readSnapshot(r io.Reader, record func(kind byte, value []byte) error) (uint64, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	index, err := SnapshotIndex(in)
	if err != nil {
		return 0, err
	}
	var value []byte
	for {
		kind, err := in.ReadByte()
		if err != nil {
			return 0, fmt.Errorf("%w: cut off: %w", ErrBadSnapshot, err)
		}
		if kind == frameEnd {
			return index, nil
		}
		size, err := binary.ReadUvarint(in)
		if err != nil {
			return 0, fmt.Errorf("%w: cut off: %w", ErrBadSnapshot, err)
		}
		if size > maxRecord {
			return 0, fmt.Errorf("%w: a record of %d bytes", ErrBadSnapshot, size)
		}
		value = slices.Grow(value[:0], int(size))[:size]
		if _, err := io.ReadFull(in, value); err != nil {
			return 0, fmt.Errorf("%w: cut off: %w", ErrBadSnapshot, err)
		}
		if err := record(kind, value); err != nil {
			return 0, err
		}
	}
}

// Reindex copies a snapshot and gives it another index, so that it is newer than any ledger that it replaces. Every
// node is to compare with it what runs there, before its next lease (claim.Node.LostIndex): workloads of the snapshot
// may have ended since. Marks are left out: the acts have ended since, and who repeats one might delete a volume that
// is in use by now.
// Everything is verified: the copy can be restored. It returns the index that the snapshot had. The error is
// ErrBadSnapshot if it is not a snapshot.
func Reindex(w io.Writer, r io.Reader, index uint64) (before uint64, err error) {
	out := bufio.NewWriterSize(w, 64<<10)
	header := append([]byte(snapshotMagic), snapshotVersion)
	if _, err := out.Write(binary.BigEndian.AppendUint64(header, index)); err != nil {
		return 0, fmt.Errorf("copy a snapshot of the ledger: %w", err)
	}
	before, err = readSnapshot(r, func(kind byte, value []byte) (err error) {
		if _, _, err = keysOf(kind, value); err != nil {
			return err
		}
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
		_, err = out.Write(append(binary.AppendUvarint([]byte{kind}, uint64(len(value))), value...))
		return err
	})
	if err == nil {
		err = errors.Join(out.WriteByte(frameEnd), out.Flush())
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
