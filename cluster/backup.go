package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// indexGap is by how much the index of a restored ledger is ahead of the log, so that no entry in the log counts
// as newer.
const indexGap = 1 << 20

// ErrBadBackup means that the bytes are not a backup, or a damaged one.
var ErrBadBackup = backup.ErrBad

// Backup describes a backup.
type Backup = backup.Backup

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
		Format: backup.Format, Cluster: n.report().Cluster, Server: n.name, Term: n.raft.CurrentTerm(),
		CreatedAt: n.now().UTC(), Size: sum.size, SHA256: hex.EncodeToString(sum.sum.Sum(nil)),
	}
	if b.Index, err = backup.SnapshotIndex(f); err != nil {
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

// Restore replaces the ledger of the whole cluster by a backup, of this cluster or another, after verifying it; by is
// the operator. Commands in progress fail with ErrUncertain. Only the leader restores: errors are ErrNotLeader,
// ErrBadBackup, ErrDiskFull, and claim.ErrVolumeInUse or claim.ErrMarked while there are claims, which the backup may
// not contain, or acts on volumes.
func (n *Node) Restore(ctx context.Context, r io.Reader, by string) (Backup, error) {
	b, err := n.restore(ctx, r, by)
	if err != nil {
		return b, fmt.Errorf("restore the ledger: %w", err)
	}
	return b, nil
}

func (n *Node) restore(ctx context.Context, r io.Reader, by string) (b Backup, err error) {
	if err := n.verifyLeader(ctx); err != nil {
		return b, err
	}
	f, remove, err := n.temporary()
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var index uint64
	b, err = backup.Read(r, func(b Backup, snapshot io.Reader) error {
		index = max(b.Index, n.raft.LastIndex()) + indexGap
		// In this file, in raft's snapshots, and in the ledger itself.
		if err := needSpace(n.dir, SpaceToGrow+3*uint64(b.Size)); err != nil {
			return err
		}
		switch had, err := state.Reindex(f, snapshot, index); {
		case err == nil && had != b.Index:
			return fmt.Errorf("%w: its index is wrong", ErrBadBackup)
		default:
			return err
		}
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
	// Only now: the backup may have come over a slow line, and claims were granted meanwhile. The mark ends with the
	// ledger that it is in, and with this server's leadership.
	mark, err := n.ApplyHere(ctx, &command.TakeMark{Mark: claim.Mark{Act: claim.Restoring, By: by}})
	if err != nil {
		return b, err
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: index, Size: size}
	if err := n.raft.Restore(meta, f, 0); err != nil {
		_, left := n.ApplyHere(ctx, &command.EndMark{Index: mark.(claim.Mark).Index})
		return b, errors.Join(raftError(err), left)
	}
	n.log.Warn("the ledger was restored from a backup", "cluster", b.Cluster, "index", b.Index, "created", b.CreatedAt)
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
