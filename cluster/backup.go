package cluster

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/internal/errcode"
)

// A backup is one line of JSON (Backup), followed by a snapshot of the ledger.

// backupFormat is the only format so far.
const backupFormat = "pannier-ledger-1"

// maxBackupHeader bounds the line of JSON, in bytes.
const maxBackupHeader = 4 << 10

// indexGap is by how much the index of a restored ledger is ahead of the log, so that no entry in the log counts
// as newer.
const indexGap = 1 << 20

// ErrBadBackup says that the bytes are not a backup, or a damaged one.
var ErrBadBackup = errcode.InvalidArgument.New("bad backup of the ledger")

// Backup describes a backup. Secrets in it are encrypted, as they are in the ledger.
type Backup struct {
	Format    string    `json:"format"`
	Cluster   string    `json:"cluster"` // the identity of the cluster
	Server    string    `json:"server"`  // that wrote it
	Index     uint64    `json:"index"`   // of the last entry in it
	Term      uint64    `json:"term"`
	CreatedAt time.Time `json:"created_at"`
	Size      int64     `json:"size"`   // of the snapshot, in bytes
	SHA256    string    `json:"sha256"` // of the snapshot, in hexadecimal
}

// Save writes a backup of this server's ledger. On the leader it includes everything that was acknowledged before
// the call; on another server it may be stale (Age).
func (n *Node) Save(ctx context.Context, w io.Writer) (Backup, error) {
	b, err := n.save(ctx, w)
	if err != nil {
		return b, fmt.Errorf("save the ledger: %w", err)
	}
	return b, nil
}

func (n *Node) save(ctx context.Context, w io.Writer) (b Backup, err error) {
	if err := n.WaitReady(ctx); err != nil {
		return b, err
	}
	if n.Leader() {
		if err := n.verifyLeader(ctx); err != nil {
			return b, err
		}
	}
	if err := needSpace(n.dir, SpaceToGrow); err != nil {
		return b, err
	}
	// The header has the size and the checksum, so the snapshot is written to a file first.
	f, remove, err := n.temporary()
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	snapshot, err := n.store.Snapshot()
	if err != nil {
		return b, err
	}
	sum := &counted{sum: sha256.New()}
	err = snapshot.Write(io.MultiWriter(f, sum))
	snapshot.Release()
	if err != nil {
		return b, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return b, err
	}
	b = Backup{
		Format: backupFormat, Cluster: n.report().Cluster, Server: n.name, Term: n.raft.CurrentTerm(),
		CreatedAt: n.now().UTC(), Size: sum.size, SHA256: hex.EncodeToString(sum.sum.Sum(nil)),
	}
	if b.Index, err = state.SnapshotIndex(f); err != nil {
		return b, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return b, err
	}
	if err := json.NewEncoder(w).Encode(b); err != nil { // a line
		return b, err
	}
	_, err = io.Copy(w, f)
	return b, err
}

// Inspect reads a whole backup, verifies its checksums and describes it. Unlike Restore it does not decode the
// records.
func Inspect(r io.Reader) (Backup, error) {
	return readBackup(r, func(_ Backup, snapshot io.Reader) (uint64, error) { return state.CheckSnapshot(snapshot) })
}

// Restore replaces the ledger of the whole cluster by a backup, of this cluster or another, after verifying it.
// Commands in progress fail with ErrUncertain. Only the leader restores: errors are ErrNotLeader, ErrBadBackup,
// ErrDiskFull.
func (n *Node) Restore(ctx context.Context, r io.Reader) (Backup, error) {
	b, err := n.restore(ctx, r)
	if err != nil {
		return b, fmt.Errorf("restore the ledger: %w", err)
	}
	return b, nil
}

func (n *Node) restore(ctx context.Context, r io.Reader) (b Backup, err error) {
	if err := n.verifyLeader(ctx); err != nil {
		return b, err
	}
	f, remove, err := n.temporary()
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var index uint64
	b, err = readBackup(r, func(b Backup, snapshot io.Reader) (uint64, error) {
		index = max(b.Index, n.raft.LastIndex()) + indexGap
		// In this file, in raft's snapshots, and in the ledger itself.
		if err := needSpace(n.dir, SpaceToGrow+3*uint64(b.Size)); err != nil {
			return 0, err
		}
		return state.Reindex(f, snapshot, index)
	})
	if err != nil {
		return b, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return b, err
	}
	if err := context.Cause(ctx); err != nil {
		return b, err
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: index, Size: size}
	if err := n.raft.Restore(meta, f, 0); err != nil {
		return b, raftError(err)
	}
	n.log.Warn("the ledger was restored from a backup", "cluster", b.Cluster, "index", b.Index, "created", b.CreatedAt)
	return b, nil
}

// readBackup verifies a backup. read reads and verifies the snapshot, and returns its index.
func readBackup(r io.Reader, read func(Backup, io.Reader) (uint64, error)) (b Backup, err error) {
	in := bufio.NewReaderSize(r, maxBackupHeader)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return b, fmt.Errorf("%w: it does not begin like a backup: %w", ErrBadBackup, err)
	}
	if err := json.Unmarshal(line, &b); err != nil {
		return b, fmt.Errorf("%w: it does not begin like a backup: %w", ErrBadBackup, err)
	}
	if b.Format != backupFormat || b.Size <= 0 {
		return b, fmt.Errorf("%w: it has the format %q and %d bytes, this program knows %q", ErrBadBackup, b.Format,
			b.Size, backupFormat)
	}
	sum := sha256.New()
	had, err := read(b, io.TeeReader(io.LimitReader(in, b.Size), sum))
	if errors.Is(err, state.ErrBadSnapshot) {
		return b, fmt.Errorf("%w: %w", ErrBadBackup, err)
	}
	if err != nil {
		return b, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != b.SHA256 || had != b.Index {
		return b, fmt.Errorf("%w: its checksum or its index is wrong", ErrBadBackup)
	}
	return b, nil
}

// temporary returns a file beside the ledger that only its owner may read, and a function that removes it.
func (n *Node) temporary() (f *os.File, remove func() error, err error) {
	f, err = os.CreateTemp(n.dir, "backup-*")
	if err != nil {
		return nil, nil, err
	}
	return f, func() error { return errors.Join(f.Close(), os.Remove(f.Name())) }, nil
}

// counted computes the size and the checksum of what is written to it.
type counted struct {
	sum  hash.Hash
	size int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.size += int64(len(p))
	return c.sum.Write(p)
}
