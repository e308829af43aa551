package raftnode

import (
	"errors"
	"math"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/test/lib/check"
)

// brokenDisk is a log on a disk whose writes fail.
type brokenDisk struct {
	*raft.InmemStore
	mu  sync.Mutex
	err error
}

func (d *brokenDisk) StoreLogs(entries []*raft.Log) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	return d.InmemStore.StoreLogs(entries)
}

func (d *brokenDisk) breaks(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// countingFSM counts the entries that were applied.
type countingFSM struct {
	raft.BatchingFSM
	applied int
}

func (f *countingFSM) ApplyBatch(entries []*raft.Log) []any {
	f.applied += len(entries)
	return make([]any, len(entries))
}

// TestTailOnABrokenDisk: a leader has sent entries that it cannot write.
func TestTailOnABrokenDisk(t *testing.T) {
	disk := &brokenDisk{InmemStore: raft.NewInmemStore()}
	leads, failed := true, make(chan error, 10)
	tail, err := newTailLog(disk, nil, func() bool { return leads }, func(err error) { failed <- err })
	check.NoError(t, err)
	var running sync.WaitGroup
	running.Go(tail.run)
	defer running.Wait()
	defer tail.close()
	inner := &countingFSM{}
	fsm := &tailFSM{BatchingFSM: inner, log: tail}
	entry := func(index uint64, kind raft.LogType) []*raft.Log {
		return []*raft.Log{{Index: index, Term: 1, Type: kind}}
	}
	bound := func() uint64 {
		args := &raft.AppendEntriesRequest{LeaderCommitIndex: math.MaxUint64}
		tail.bound(args)
		return args.LeaderCommitIndex
	}

	check.NoError(t, tail.StoreLogs(entry(1, raft.LogNoop)))
	if last, err := disk.LastIndex(); err != nil || last != 1 {
		t.Fatalf("the disk has entries up to %d: %v", last, err)
	}
	disk.breaks(syscall.EIO)
	check.NoError(t, tail.StoreLogs(entry(2, raft.LogCommand)))
	if err := <-failed; err == nil {
		t.Fatal(err)
	}
	if told := bound(); told != 1 {
		t.Errorf("followers are told that %d entries are committed", told)
	}
	check.NoError(t, tail.GetLog(2, new(raft.Log))) // it is sent
	if err := tail.StoreLogs(entry(3, raft.LogCommand)); err == nil {
		t.Error("another entry was taken by a leader whose disk is broken")
	}
	for what, call := range map[string]func() error{
		"an entry is read":             func() error { return tail.GetLog(2, new(raft.Log)) },
		"an entry is stored":           func() error { return tail.StoreLogs(entry(3, raft.LogCommand)) },
		"entries are deleted":          func() error { return tail.DeleteRange(2, 2) },
		"the last entry is looked for": func() error { _, err := tail.LastIndex(); return err },
	} {
		leads = false
		if call() == nil {
			t.Errorf("%s by a server that leads no more, and has not written all that it had", what)
		}
	}

	disk.breaks(nil)
	check.NoError(t, tail.GetLog(2, new(raft.Log)))
	if last, err := disk.LastIndex(); err != nil || last != 2 {
		t.Fatalf("the disk has entries up to %d: %v", last, err)
	}
	if told := bound(); told != math.MaxUint64 {
		t.Errorf("followers are told that %d entries are committed, and all are", told)
	}
	if r := fsm.ApplyBatch(entry(2, raft.LogCommand)); r[0] != nil || inner.applied != 1 {
		t.Errorf("an entry that is on disk was not applied: %v", r)
	}

	leads = true
	disk.breaks(syscall.EIO)
	check.NoError(t, tail.StoreLogs(entry(3, raft.LogCommand)))
	<-failed
	go tail.close()
	if r := fsm.ApplyBatch(entry(3, raft.LogCommand)); !errors.Is(r[0].(error), errNotWritten) || inner.applied != 1 {
		t.Errorf("the answer to an entry that was never written: %v", r)
	}
	if _, err := fsm.Snapshot(); !errors.Is(err, errNotWritten) {
		t.Errorf("a snapshot without an entry: %v", err)
	}
}
