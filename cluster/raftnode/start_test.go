package raftnode_test

import (
	"io"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/raftnode"
)

// durable is an FSM that survives the end of its server: it counts entries, and records configurations.
type durable struct {
	applied, first uint64 // first since the start
	servers        raftnode.Servers
}

func (d *durable) Apply(log *raft.Log) any { return d.ApplyBatch([]*raft.Log{log})[0] }

func (d *durable) ApplyBatch(logs []*raft.Log) []any {
	for _, log := range logs {
		if d.first == 0 {
			d.first = log.Index
		}
		if log.Type == raft.LogConfiguration {
			d.servers.Index, d.servers.Configuration = log.Index, log.Data
		}
		d.applied = log.Index
	}
	return make([]any, len(logs))
}

func (d *durable) Snapshot() (raft.FSMSnapshot, error) { return nothing{}, nil }
func (d *durable) Restore(r io.ReadCloser) error       { return r.Close() }

// nothing is a snapshot without content.
type nothing struct{}

func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (nothing) Release()                             {}

// member is a server of one that keeps the FSM over restarts.
type member struct {
	*raftnode.Node
	dir string
	fsm *durable
}

func (m *member) start(t *testing.T) {
	t.Helper()
	m.fsm.first = 0
	cfg := config(m.dir, "server-1", 1)
	cfg.FSM, cfg.Applied, cfg.Servers = m.fsm, m.fsm.applied, m.fsm.servers
	m.Node = open(t, cfg)
	leads(t, m.Node)
	m.do(t, m.Barrier(0))
}

func (m *member) restart(t *testing.T) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m.start(t)
}

func (*member) do(t *testing.T, f raft.Future) {
	t.Helper()
	if err := f.Error(); err != nil {
		t.Fatal(err)
	}
}

func (m *member) apply(t *testing.T) {
	t.Helper()
	m.do(t, m.Apply([]byte("entry"), 0))
}

// servers returns how many servers raft knows.
func (m *member) servers(t *testing.T) int {
	t.Helper()
	f := m.GetConfiguration()
	m.do(t, f)
	return len(f.Configuration().Servers)
}

// TestStartWhereTheFSMIs: after a restart raft applies what the FSM does not have and nothing else, and knows the
// servers of the last configuration, wherever that is recorded.
func TestStartWhereTheFSMIs(t *testing.T) {
	m := &member{dir: t.TempDir(), fsm: &durable{}}
	m.start(t)
	m.do(t, m.AddNonvoter("server-2", "server-2", 0, 0))
	m.apply(t)
	applied := m.fsm.applied
	m.restart(t)
	if m.fsm.first != 0 {
		t.Errorf("entry %d was applied again; the FSM had all up to %d", m.fsm.first, applied)
	}
	if n := m.servers(t); n != 2 {
		t.Errorf("it knows %d servers of 2", n)
	}
	if n := m.SnapshotIndex(); n != 0 {
		t.Errorf("there is a snapshot up to %d, which nobody has taken", n)
	}

	// The FSM's files are an older state.
	older := *m.fsm
	m.apply(t)
	next := m.fsm.applied
	*m.fsm = older
	m.restart(t)
	if m.fsm.first != next || m.fsm.applied != next {
		t.Errorf("entries from %d to %d were applied, not %d", m.fsm.first, m.fsm.applied, next)
	}

	// The FSM has its configurations from after the snapshot only, and there are none.
	m.do(t, m.Snapshot())
	taken := m.SnapshotIndex()
	m.fsm.servers = raftnode.Servers{Since: m.fsm.applied}
	m.apply(t)
	m.restart(t)
	if n := m.servers(t); n != 2 || m.fsm.first != 0 || m.SnapshotIndex() != taken {
		t.Errorf("%d servers, entry %d was applied again, the snapshot is at %d, not %d", n, m.fsm.first, m.SnapshotIndex(), taken)
	}

	// The FSM does not know whether there was a configuration after the snapshot.
	m.do(t, m.RemoveServer("server-2", 0, 0))
	m.apply(t)
	m.fsm.servers = raftnode.Servers{Since: m.fsm.applied}
	m.restart(t)
	if n := m.servers(t); n != 1 {
		t.Errorf("it knows %d servers after one of two was removed", n)
	}
}

// TestSnapshotsInTime: entries that raft did not read at its start count for the next snapshot. Otherwise the log of a
// server that restarts often would grow without bound.
func TestSnapshotsInTime(t *testing.T) {
	m := &member{dir: t.TempDir(), fsm: &durable{}}
	m.start(t)
	usual := m.ReloadableConfig().SnapshotThreshold
	for range 100 {
		m.apply(t)
	}
	m.restart(t)
	if after := m.ReloadableConfig().SnapshotThreshold; usual-after < 100 {
		t.Errorf("the next snapshot is after %d entries, as for a server that has read all: %d", after, usual)
	}
	m.apply(t)
	m.do(t, m.Snapshot())
	if after := m.ReloadableConfig().SnapshotThreshold; after != usual {
		t.Errorf("after a snapshot the next one is after %d entries, not %d", after, usual)
	}
}
