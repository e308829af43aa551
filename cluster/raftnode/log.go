package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/pannier/pannier/internal/atomicfile"
)

// raft-wal verifies the checksum of its last batch only. If an earlier batch is damaged it returns wrong entries,
// and if the log is truncated it continues from there; it reports neither. So all checksums are verified here
// before the log is opened, and the log's end is compared with the ledger.

// ErrDamaged means that the raft log is damaged.
var ErrDamaged = errors.New("the raft log is damaged")

// openLog opens the log. A damaged log is set aside if other servers have the entries too.
func (n *Node) openLog(dir string, snapshots *snapshots) error {
	open := func() (err error) {
		n.log, err = wal.Open(dir, wal.WithSegmentSize(segmentSize), wal.WithLogger(quieter(n.logger.Named("wal"), n.cfg)))
		return err
	}
	if n.cfg.Streams == nil {
		return open()
	}
	damage := checkLog(dir)
	if damage == nil {
		err := open()
		if err != nil && !errors.Is(err, wal.ErrCorrupt) {
			return err
		}
		if err == nil {
			missing, err := n.gap(snapshots)
			if err != nil || missing == 0 {
				return err
			}
			damage = fmt.Errorf("%w: no snapshot has the entries up to index %d", ErrDamaged, missing)
			damage = errors.Join(damage, n.log.Close())
		} else {
			damage = fmt.Errorf("%w: %s: %w", ErrDamaged, dir, err)
		}
	}
	if !errors.Is(damage, ErrDamaged) {
		return damage
	}
	votes, err := readVotes(dir)
	if err != nil {
		return errors.Join(damage, err)
	}
	if err := n.abstain(damage); err != nil {
		return err
	}
	aside := dir + ".damaged"
	n.logger.Error("the raft log is damaged and was set aside; this server copies it from the others, "+
		"and does not vote until it has caught up", "error", damage, "aside", aside)
	if err := errors.Join(os.RemoveAll(aside), os.Rename(dir, aside), os.Mkdir(dir, 0o700),
		atomicfile.SyncDir(n.cfg.Dir)); err != nil {
		return err
	}
	if err := open(); err != nil {
		return err
	}
	for key, value := range votes {
		if err := n.log.Set([]byte(key), value); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) abstain(damage error) error { return n.abstention.begin(loss{Why: damage.Error()}) }

// votesKeys are the keys under which raft keeps its term and its vote: they must survive when the log is set
// aside.
var votesKeys = []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"}

func readVotes(dir string) (map[string][]byte, error) {
	var db metadb.BoltMetaDB
	_, err := db.Load(dir)
	votes := map[string][]byte{}
	for _, key := range votesKeys {
		if err != nil {
			break
		}
		var value []byte
		if value, err = db.GetStable([]byte(key)); value != nil {
			votes[key] = value
		}
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("read the votes that this server has given: %w", err)
	}
	return votes, nil
}

// checkEnd compares the log's end with the ledger, which holds only entries that were in the log. A server without
// raft state is new, or has lost everything.
func (n *Node) checkEnd(snapshots raft.SnapshotStore, snapshot uint64) error {
	if n.cfg.Streams == nil {
		return nil
	}
	end, err := n.log.LastIndex()
	if err != nil {
		return err
	}
	list, err := snapshots.List()
	if err != nil {
		return err
	}
	for _, s := range list {
		end = max(end, s.Index)
	}
	switch end = max(end, snapshot); {
	case n.cfg.Applied > end:
		damage := fmt.Errorf("%w: it ends at index %d, and the ledger had %d already", ErrDamaged, end, n.cfg.Applied)
		if n.abstention.damage() == "" {
			n.logger.Error("the raft log lacks entries; this server copies them from the others, "+
				"and does not vote until it has caught up", "error", damage)
		}
		return n.abstain(damage)
	case end == 0 && n.forming.promised().To == "":
		return n.abstention.begin(loss{})
	default:
		return nil
	}
}

// The format of a log file (github.com/hashicorp/raft-wal, README, Segment Files): a header, then frames. A frame
// has a header and a payload, padded to eight bytes. A batch ends in a frame with the Castagnoli checksum of the
// bytes since the previous one.
const (
	fileHeader  = 32
	frameHeader = 8

	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3
)

// checkLog reads the whole log and verifies its checksums. The error is ErrDamaged and names the file. The last
// batch of a file is not checked: it may be one that was being written when the host ended.
func checkLog(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return err
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if at, ok := damagedAt(data); !ok {
			return fmt.Errorf("%w: the batch before byte %d of %s has a wrong checksum", ErrDamaged, at, path)
		}
	}
	return nil
}

// damagedAt finds a batch with a wrong checksum that a valid batch follows.
func damagedAt(data []byte) (at int, ok bool) {
	sums := crc32.MakeTable(crc32.Castagnoli)
	begin, wrong := 0, 0
	for at := fileHeader; at+frameHeader <= len(data); {
		size := int64(binary.LittleEndian.Uint32(data[at+4:]))
		switch data[at] {
		case frameEntry, frameIndex:
			size += -size & 7 // padding
			if size > int64(len(data)-at-frameHeader) {
				return 0, true
			}
			at += frameHeader + int(size)
		case frameCommit:
			switch whole := crc32.Checksum(data[begin:at], sums) == uint32(size); {
			case whole && wrong > 0:
				return wrong, false
			case !whole:
				wrong = at
			}
			at += frameHeader
			begin = at
		default:
			return 0, true
		}
	}
	return 0, true
}

// boundedLog refuses entries while the disk lacks room for them and for what the ledger makes of them. A leader
// then steps down; other servers are told to try again.
type boundedLog struct {
	*wal.WAL
	room   func() error // nil: always enough
	writes *writes
}

// StoreLog appends an entry (raft.LogStore).
func (l boundedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries (raft.LogStore).
func (l boundedLog) StoreLogs(entries []*raft.Log) error {
	if err := l.checkRoom(); err != nil {
		return err
	}
	return l.writes.measure(func() error { return l.WAL.StoreLogs(entries) })
}

// DeleteRange deletes entries (raft.LogStore). Entries at the end are deleted to be replaced by others, and raft
// cannot recover if only the deletion succeeds, so room is checked first.
func (l boundedLog) DeleteRange(lowest, highest uint64) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	if lowest > first {
		if err := l.checkRoom(); err != nil {
			return err
		}
	}
	return l.WAL.DeleteRange(lowest, highest)
}

func (l boundedLog) checkRoom() error {
	if l.room == nil {
		return nil
	}
	return l.room()
}
