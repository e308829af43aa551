package raftnode

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// Raft begins with its newest snapshot, and reads all entries after it, twice: for configurations, and to apply them.
// The FSM here is on disk and has most of them. So raft is shown, once, a snapshot that would end where the FSM does,
// and reads the few entries after that. It does not restore it, because the FSM is not behind it, and other servers get
// the snapshots that there are.

// Servers is what an FSM knows of raft's configuration.
type Servers struct {
	// Since is the index after which the FSM has recorded every configuration.
	Since uint64
	// Index and Configuration are the entry of the last one and its content in raft's encoding; 0: there was none.
	Index         uint64
	Configuration []byte
}

// start is the snapshots of a server, with the one that it starts from.
type start struct {
	raft.SnapshotStore
	at       *raft.SnapshotMeta // nil: raft starts from its newest snapshot
	snapshot uint64             // the index of the newest snapshot; 0: there is none
	term     uint64             // of the entry at snapshot
	shown    atomic.Bool        // at was listed
	written  atomic.Bool        // a snapshot was begun since
	onWrite  func()             // is called once, when that is
}

// newStart decides where raft starts. ahead says that the FSM has all of the newest snapshot. The entry that was
// applied last must be in the log: it has the term.
func newStart(cfg Config, log *wal.WAL, snapshots raft.SnapshotStore, ahead bool) (*start, error) {
	s := &start{SnapshotStore: snapshots}
	list, err := snapshots.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	at := raft.SnapshotMeta{Version: raft.SnapshotVersionMax, ID: "applied", Index: cfg.Applied}
	if len(list) > 0 {
		s.snapshot, s.term = list[0].Index, list[0].Term
		at.Configuration, at.ConfigurationIndex = list[0].Configuration, list[0].ConfigurationIndex
	}
	known := s.snapshot > 0 && cfg.Servers.Since <= s.snapshot
	if cfg.Servers.Index > s.snapshot {
		at.Configuration, at.ConfigurationIndex = raft.DecodeConfiguration(cfg.Servers.Configuration), cfg.Servers.Index
		known = true
	}
	if !ahead || !known || cfg.Applied <= s.snapshot || s.snapshot == 1 {
		return s, nil
	}
	var last raft.Log
	switch err := log.GetLog(cfg.Applied, &last); {
	case errors.Is(err, raft.ErrLogNotFound):
		return s, nil
	case err != nil:
		return nil, fmt.Errorf("read the entry that was applied last, %d: %w", cfg.Applied, err)
	}
	at.Term = last.Term
	s.at = &at
	return s, nil
}

// skipped is how many entries after the newest snapshot raft does not count.
func (s *start) skipped() uint64 {
	if s.at == nil {
		return 0
	}
	return s.at.Index - s.snapshot
}

// startedLog is the log of a server with its start. A leader that has sent the newest snapshot to another server looks
// for the term of the snapshot's last entry in its log, if that is not where raft has started. The entry may have been
// deleted.
type startedLog struct {
	boundedLog
	start *start
}

// GetLog reads an entry (raft.LogStore).
func (l startedLog) GetLog(index uint64, entry *raft.Log) error {
	err := l.boundedLog.GetLog(index, entry)
	if errors.Is(err, raft.ErrLogNotFound) && l.start.at != nil && index == l.start.snapshot && index > 0 {
		*entry = raft.Log{Index: index, Term: l.start.term, Type: raft.LogNoop}
		return nil
	}
	return err
}

// List lists the snapshots (raft.SnapshotStore): the first time, for raft's start, the one that it starts from.
func (s *start) List() ([]*raft.SnapshotMeta, error) {
	if s.at != nil && !s.shown.Swap(true) {
		return []*raft.SnapshotMeta{s.at}, nil
	}
	return s.SnapshotStore.List()
}

// Create begins a snapshot (raft.SnapshotStore).
func (s *start) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err == nil && !s.written.Swap(true) {
		s.onWrite()
	}
	return sink, err
}

// threshold is after how many entries raft takes the first snapshot: those that it skipped count.
func (s *start) threshold() uint64 {
	return snapshotThreshold - min(s.skipped(), snapshotThreshold-1)
}

// resetThreshold lets raft take the next snapshots after as many entries as ever.
func (n *Node) resetThreshold() {
	<-n.opened
	n.reloading.Lock()
	defer n.reloading.Unlock()
	conf := n.ReloadableConfig()
	conf.SnapshotThreshold = snapshotThreshold
	if err := n.ReloadConfig(conf); err != nil {
		n.logger.Error("raft's snapshots stay more frequent than they need be until the next start", "error", err)
	}
}
