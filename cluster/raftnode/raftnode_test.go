package raftnode_test

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster/raftnode"
)

// memberlist's shutdown does not wait for a probe in progress.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// empty is an FSM without state.
type empty struct{}

func (empty) Apply(*raft.Log) any                 { return nil }
func (empty) ApplyBatch(logs []*raft.Log) []any   { return make([]any, len(logs)) }
func (empty) Snapshot() (raft.FSMSnapshot, error) { return nil, io.EOF }
func (empty) Restore(r io.ReadCloser) error       { return r.Close() }
func noIndex(io.Reader) (uint64, error)           { return 0, nil }
func config(dir, id string, n int) raftnode.Config {
	return raftnode.Config{Dir: dir, ID: id, BootstrapExpect: n, FSM: empty{}, SnapshotIndex: noIndex}
}

func open(t *testing.T, cfg raftnode.Config) *raftnode.Node {
	t.Helper()
	n, err := raftnode.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func leads(t *testing.T, n *raftnode.Node) {
	t.Helper()
	select {
	case leads := <-n.Leadership:
		if !leads {
			t.Fatal("leadership was lost")
		}
	case <-time.After(time.Minute):
		t.Fatal("no leader")
	}
}

// TestBootstrapsOnce restarts a server. It keeps its cluster, whatever bootstrap_expect is.
func TestBootstrapsOnce(t *testing.T) {
	dir := t.TempDir()
	for i, expect := range []int{1, 1, 3} {
		n := open(t, config(dir, "server-1", expect))
		leads(t, n)
		f := n.GetConfiguration()
		if err := f.Error(); err != nil {
			t.Fatal(err)
		}
		if len(f.Configuration().Servers) != 1 {
			t.Errorf("start %d: the configuration is %+v", i, f.Configuration())
		}
		if term := n.CurrentTerm(); term != uint64(i+2) {
			t.Errorf("start %d: term %d", i, term)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAloneStartsAtOnce requires that a single server starts faster than its election timeout. It tries repeatedly,
// because a busy machine may occasionally take longer.
func TestAloneStartsAtOnce(t *testing.T) {
	var took time.Duration
	for range 10 {
		begin := time.Now()
		n := open(t, config(t.TempDir(), "server-1", 1))
		leads(t, n)
		if took = time.Since(begin); took < time.Second {
			return
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("a single server led only after %s, ten times", took)
}

// TestAloneLeadsAgain requires that a single server whose log could not be written leads again soon. It
// tries repeatedly, because a busy machine may occasionally take longer.
func TestAloneLeadsAgain(t *testing.T) {
	var full atomic.Bool
	cfg := config(t.TempDir(), "server-1", 1)
	cfg.ElectionTimeout = 50 * time.Millisecond
	cfg.Room = func() error {
		if full.CompareAndSwap(true, false) {
			return errors.New("the disk is full")
		}
		return nil
	}
	n := open(t, cfg)
	leads(t, n)
	var took time.Duration
	for range 5 {
		full.Store(true)
		began := time.Now()
		if err := n.Apply([]byte("entry"), 0).Error(); err == nil {
			t.Fatal("an entry was written to a full disk")
		}
		if <-n.Leadership {
			t.Fatal("it leads with a log that cannot be written")
		}
		leads(t, n)
		if took = time.Since(began); took < 2*time.Second {
			return
		}
	}
	t.Errorf("it led again only after %s, five times", took)
}

func TestExpectsOthers(t *testing.T) {
	n := open(t, config(t.TempDir(), "server-1", 3))
	f := n.GetConfiguration()
	if err := f.Error(); err != nil || len(f.Configuration().Servers) != 0 {
		t.Errorf("it bootstrapped alone: %+v, %v", f.Configuration(), err)
	}
}

func TestAnotherName(t *testing.T) {
	dir := t.TempDir()
	n := open(t, config(dir, "server-1", 1))
	leads(t, n)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := raftnode.Open(config(dir, "server-2", 1))
	if err == nil || !strings.Contains(err.Error(), `belongs to the server "server-1"`) {
		t.Errorf("got %v", err)
	}
}
