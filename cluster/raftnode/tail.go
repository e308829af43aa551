package raftnode

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// A leader writes its own entries while it sends them (Ongaro, Consensus: Bridging Theory and Practice, 10.2.1). Raft
// takes an entry for written when StoreLogs returns, so on a leader its commit index may be ahead of the disk. Nothing
// that leaves this package is: tailFSM waits for the disk, and bound limits the index that followers are told.
// cluster/DESIGN.md has the argument.

// errNotWritten says that an entry was not written to this server's disk. Other servers may have it.
var errNotWritten = errors.New("the raft log could not be written")

// tailLog is the log on disk and, on a leader, a tail of commands that are being written.
type tailLog struct {
	*raft.LogCache
	room  func() error // nil: always enough
	leads func() bool  // this server leads others, to which entries are sent meanwhile; nil: there are none

	first  atomic.Uint64 // index of the tail's first entry; 0: there is no tail
	wake   chan struct{} // filled when there is a tail
	failed func(error)   // is called when the tail could not be written

	mu      sync.Mutex
	changed sync.Cond // the tail, writing or closed
	tail    []*raft.Log
	writing bool
	err     error // of the last write; nil: it succeeded
	closed  bool
}

func newTailLog(under raft.LogStore, room func() error, leads func() bool, failed func(error)) (*tailLog, error) {
	cache, err := raft.NewLogCache(cachedEntries, under)
	l := &tailLog{LogCache: cache, room: room, leads: leads, wake: make(chan struct{}, 1), failed: failed}
	l.changed.L = &l.mu
	return l, err
}

// openTail makes the log that raft uses.
func (n *Node) openTail() (err error) {
	var leads func() bool
	if n.streams != nil {
		leads = func() bool {
			select {
			case <-n.opened:
				all, err := n.servers()
				return err == nil && len(all) > 1 && n.State() == raft.Leader
			default:
				return false
			}
		}
	}
	n.tail, err = newTailLog(startedLog{n.log, n.start}, n.cfg.Room, leads, func(err error) {
		n.logger.Error("the raft log could not be written; it is tried once more", "error", err)
		n.Barrier(0) // is written after the tail; if that fails again, raft steps down
	})
	if err == nil {
		n.running.Go(n.tail.run)
	}
	return err
}

// run writes the tail until close.
func (l *tailLog) run() {
	for range l.wake {
		if err := l.flush(); err != nil {
			l.failed(err)
		}
	}
}

// close ends run, and the waiting for a disk that fails: entries that could not be written are not applied. It may be
// called again.
func (l *tailLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.changed.Broadcast()
		close(l.wake)
	}
}

// StoreLog appends an entry (raft.LogStore).
func (l *tailLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries (raft.LogStore). They are on disk when it returns, with all before them, except for
// commands of a leader. It refuses entries while the disk lacks room for them and for what the ledger makes of them. A
// leader then steps down; other servers are told to try again.
func (l *tailLog) StoreLogs(entries []*raft.Log) error {
	if err := l.checkRoom(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	early := l.leads != nil && l.leads() && l.err == nil && !l.closed
	for _, e := range entries {
		early = early && e.Type == raft.LogCommand
	}
	for early && len(l.tail) >= maxAppend {
		l.changed.Wait()
		early = l.err == nil && !l.closed
	}
	if !early {
		if err := l.flushLocked(); err != nil {
			return err
		}
		return l.write(entries)
	}
	if len(l.tail) == 0 {
		l.first.Store(entries[0].Index)
	}
	l.tail = append(l.tail, entries...)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// flush writes the tail.
func (l *tailLog) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flushLocked()
}

func (l *tailLog) flushLocked() error {
	for l.writing || len(l.tail) > 0 {
		if l.writing {
			l.changed.Wait()
			continue
		}
		n := min(len(l.tail), maxAppend)
		if err := l.write(l.tail[:n:n]); err != nil {
			return err
		}
		if l.tail = l.tail[n:]; len(l.tail) == 0 {
			l.first.Store(0)
		} else {
			l.first.Store(l.tail[0].Index)
		}
		l.changed.Broadcast()
	}
	return nil
}

// write writes entries. It holds the lock before and after, not meanwhile: no other writes then.
func (l *tailLog) write(entries []*raft.Log) error {
	l.writing = true
	l.mu.Unlock()
	err := l.LogCache.StoreLogs(entries)
	l.mu.Lock()
	l.writing, l.err = false, err
	l.changed.Broadcast()
	return err
}

// GetLog reads an entry (raft.LogStore). A server that does not lead writes its tail first: it may be about to
// acknowledge entries that it had as the leader.
func (l *tailLog) GetLog(index uint64, entry *raft.Log) error {
	switch first := l.first.Load(); {
	case first == 0:
	case !l.leads():
		if err := l.flush(); err != nil {
			return err
		}
	case index >= first:
		if e := l.inTail(index); e != nil {
			*entry = *e
			return nil
		}
	}
	return l.LogCache.GetLog(index, entry)
}

func (l *tailLog) inTail(index uint64) *raft.Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tail) == 0 || index < l.tail[0].Index || index > l.tail[len(l.tail)-1].Index {
		return nil
	}
	return l.tail[index-l.tail[0].Index]
}

// LastIndex returns the last entry's index (raft.LogStore).
func (l *tailLog) LastIndex() (uint64, error) {
	if err := l.flush(); err != nil {
		return 0, err
	}
	return l.LogCache.LastIndex()
}

// DeleteRange deletes entries (raft.LogStore). Entries at the end are deleted to be replaced by others, and raft
// cannot recover if only the deletion succeeds, so room is checked first.
func (l *tailLog) DeleteRange(lowest, highest uint64) error {
	if err := l.flush(); err != nil {
		return err
	}
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	if lowest > first {
		if err := l.checkRoom(); err != nil {
			return err
		}
	}
	return l.LogCache.DeleteRange(lowest, highest)
}

func (l *tailLog) checkRoom() error {
	if l.room == nil {
		return nil
	}
	return l.room()
}

// bound lowers the commit index that a request tells a follower to what is on this server's disk.
func (l *tailLog) bound(args *raft.AppendEntriesRequest) {
	if first := l.first.Load(); first != 0 {
		args.LeaderCommitIndex = min(args.LeaderCommitIndex, first-1)
	}
}

// await waits until an entry is on disk. It gives up when the log is closed and cannot be written.
func (l *tailLog) await(index uint64) error {
	below := func() bool { first := l.first.Load(); return first != 0 && first <= index }
	if !below() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for below() {
		if l.closed && l.err != nil {
			return fmt.Errorf("%w: %w", errNotWritten, l.err)
		}
		l.changed.Wait()
	}
	return nil
}

// tailFSM applies entries when they are on this server's disk.
type tailFSM struct {
	raft.BatchingFSM
	log *tailLog
	err atomic.Pointer[error] // entries were skipped, since they could not be written before the end
}

// Apply applies an entry (raft.FSM).
func (f *tailFSM) Apply(entry *raft.Log) any { return f.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch applies entries (raft.BatchingFSM). The response to an entry that is not on disk is an error.
func (f *tailFSM) ApplyBatch(entries []*raft.Log) []any {
	if err := f.log.await(entries[len(entries)-1].Index); err != nil {
		f.err.Store(&err)
		responses := make([]any, len(entries))
		for i := range responses {
			responses[i] = err
		}
		return responses
	}
	return f.BatchingFSM.ApplyBatch(entries)
}

// Snapshot takes a snapshot (raft.FSM), which has all entries before.
func (f *tailFSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.err.Load(); err != nil {
		return nil, *err
	}
	return f.BatchingFSM.Snapshot()
}
