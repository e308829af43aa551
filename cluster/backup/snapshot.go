package backup

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
)

// A snapshot is a header (magic, version, index of the last applied entry), the records in frames, and an end frame. It
// has only the records themselves: index keys are rebuilt, so they may change between versions. A frame is the kind of
// the record, its length (uvarint) and the record. Its checksum is with the file: raft's in its store, a backup's in
// its header.
const (
	snapshotMagic   = "PANNIER-LEDGER\n"
	snapshotVersion = 1
	headerSize      = len(snapshotMagic) + 1 + 8
	// SnapshotEnd is the end frame.
	SnapshotEnd = 0
	// maxRecord bounds the records that are read from a snapshot: bigger ones are never written, and would not fit into
	// a transaction of the ledger.
	maxRecord = 2 * command.MaxSize
	// maxIndex bounds the index of a snapshot: no ledger comes near, and what follows it must not overflow.
	maxIndex = 1 << 62
)

// ErrBadSnapshot means that the bytes are not a snapshot, or a damaged one, or have a record that no ledger has.
var ErrBadSnapshot = errors.New("bad snapshot of the ledger")

// SnapshotHead returns the header of a snapshot.
func SnapshotHead(index uint64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(snapshotMagic), snapshotVersion), index)
}

// WriteRecord writes the frame of a record.
func WriteRecord(w io.Writer, kind byte, value []byte) error {
	_, err := w.Write(append(binary.AppendUvarint([]byte{kind}, uint64(len(value))), value...))
	return err
}

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
	index := binary.BigEndian.Uint64(header[len(snapshotMagic)+1:])
	if index > maxIndex {
		return 0, fmt.Errorf("%w: its index is %d", ErrBadSnapshot, index)
	}
	return index, nil
}

// Records verifies a snapshot while it passes its records on, and returns its index. A record is valid during the call
// only. A snapshot that passes can be restored: the ledger's database and raft end the program if it cannot.
func Records(r io.Reader, record func(kind byte, value []byte) error) (uint64, error) {
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
		if kind == SnapshotEnd {
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
		if err := validate(kind, value); err != nil {
			return 0, fmt.Errorf("%w: a record of the kind %q: %w", ErrBadSnapshot, kind, err)
		}
		if err := record(kind, value); err != nil {
			return 0, err
		}
	}
}

// validate returns why no ledger has the record. The parts of its keys are ids, so the keys are short.
func validate(kind byte, value []byte) error {
	switch kind {
	case 'v':
		return valid(value, (*claim.Volume).Validate)
	case 'c':
		return valid(value, (*claim.Claim).Validate)
	case 'w':
		return valid(value, func(w *claim.Workload) error { return errors.Join(w.Ref.Validate(), claim.CheckID(w.Node)) })
	case 'n':
		return valid(value, (*claim.Node).Validate)
	case 'd':
		return valid(value, func(d *claim.Driver) error { return claim.CheckID(d.ID) })
	case 'i':
		return valid(value, (*claim.Cluster).Validate)
	case 't':
		return valid(value, (*claim.Token).Validate)
	case 'k':
		return valid(value, (*claim.SigningKey).Validate)
	case 'g':
		return valid(value, func(r *claim.KeyRotation) error { return r.Key.Validate() })
	case 'p':
		return valid(value, (*acl.Policy).Validate)
	case 'r':
		return valid(value, (*acl.Role).Validate)
	case 'a':
		return valid(value, func(t *acl.Token) error { return t.Validate(time.Time{}) }) // it may have expired
	case 'b':
		return valid(value, func(*acl.Bootstrap) error { return nil })
	case 'l':
		return valid(value, (*claim.Liveness).Validate)
	case 'o':
		return valid(value, (*claim.Autopilot).Validate)
	case 'h':
		return valid(value, (*claim.Snapshot).Validate)
	case 's':
		return valid(value, func(*claim.SecretsKeys) error { return nil })
	case 'q':
		return valid(value, func(*claim.Mark) error { return nil })
	case 'x':
		type kept struct {
			Key string `json:"key"`
		}
		return valid(value, func(k *kept) error { return claim.CheckID(k.Key) })
	default:
		return errors.New("this program does not know it (written by a newer version)")
	}
}

func valid[T any](value []byte, check func(*T) error) error {
	var v T
	if err := codec.Unmarshal(value, &v); err != nil {
		return fmt.Errorf("read a record: %w", err)
	}
	return check(&v)
}
