package raftnode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// snapshots is a store of snapshots that reports a lost one. Raft deletes the log's entries that are in a snapshot, so
// without it the leader has nothing to send to a new server, and raft takes no other one before there are thousands of
// new entries.
type snapshots struct {
	raft.SnapshotStore
	lost chan struct{} // of capacity 1
}

// List returns the snapshots, newest first (raft.SnapshotStore).
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	all, err := s.SnapshotStore.List()
	if err != nil || len(all) == 0 {
		s.report()
	}
	return all, err
}

// Open opens a snapshot (raft.SnapshotStore).
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		s.report()
	}
	return meta, r, err
}

func (s *snapshots) report() {
	select {
	case s.lost <- struct{}{}:
	default:
	}
}

// newest returns the newest snapshot; nil: there is none.
func (s *snapshots) newest() (*raft.SnapshotMeta, error) {
	list, err := s.SnapshotStore.List()
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// renewSnapshot takes a new snapshot after one was lost.
func (n *Node) renewSnapshot(ctx context.Context, s *snapshots) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lost:
		}
		if first, err := n.log.FirstIndex(); err == nil && first <= 1 {
			continue // a new server: the log has everything
		}
		n.logger.Error("a snapshot of raft's is lost or damaged: this server takes a new one", "dir", n.cfg.Dir)
		if err := n.Snapshot().Error(); err != nil {
			n.logger.Error("this server has no snapshot for new servers: retrying when one needs it", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second): // it may be refused while servers are added
		}
	}
}

// snapshotIndex returns the index that the newest snapshot brings the FSM to; 0: there is none. Raft itself
// continues after its snapshot, so the FSM would miss entries that are only in the snapshot. A damaged snapshot is no
// loss if the FSM has everything in it.
func (n *Node) snapshotIndex(s *snapshots) (index uint64, err error) {
	newest, err := s.newest()
	if err != nil || newest == nil {
		return 0, err
	}
	_, r, err := s.Open(newest.ID)
	switch {
	case err != nil && newest.Index <= n.cfg.Applied:
		return newest.Index, nil // renewSnapshot says so
	case err != nil:
		return 0, fmt.Errorf("open snapshot %s: %w", newest.ID, err)
	}
	index, err = n.cfg.SnapshotIndex(bufio.NewReader(r))
	if err := errors.Join(err, r.Close()); err != nil {
		return 0, fmt.Errorf("read snapshot %s: %w", newest.ID, err)
	}
	return index, nil
}

// gap returns the index of the last entry that neither the log nor a snapshot has before the log's first one; 0: none
// is missing. Raft ends the program if one is.
func (n *Node) gap(s *snapshots) (uint64, error) {
	newest, err := s.newest()
	if err != nil {
		return 0, err
	}
	first, err := n.log.FirstIndex()
	if err != nil || first <= 1 || newest != nil && newest.Index >= first-1 {
		return 0, err
	}
	return first - 1, nil
}

// replaceSnapshot takes a snapshot of the FSM where a single server has lost that before its log.
func (n *Node) replaceSnapshot(s *snapshots) error {
	missing, err := n.gap(s)
	if err != nil || missing == 0 {
		return err
	}
	var entry raft.Log
	if n.cfg.Applied < missing || n.log.GetLog(n.cfg.Applied, &entry) != nil {
		return fmt.Errorf("the snapshot of raft's is lost that has the entries up to index %d, and the ledger has only those "+
			"up to %d: restore a backup (see: pannier operator snapshot restore -h)", missing, n.cfg.Applied)
	}
	address, transport := raft.NewInmemTransport(raft.ServerAddress(n.cfg.ID))
	self := raft.Server{ID: raft.ServerID(n.cfg.ID), Address: address}
	alone := raft.Configuration{Servers: []raft.Server{self}}
	sink, err := s.Create(raft.SnapshotVersionMax, entry.Index, entry.Term, alone, entry.Index, transport)
	if err != nil {
		return err
	}
	snapshot, err := n.cfg.FSM.Snapshot()
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	defer snapshot.Release()
	n.logger.Error("a snapshot of raft's is lost: this server takes a new one", "dir", n.cfg.Dir, "index", entry.Index)
	return snapshot.Persist(sink)
}
