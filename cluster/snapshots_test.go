package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// compacted applies more commands than raft keeps behind a snapshot, and takes one: the log's first entries are gone.
func compacted(t *testing.T, l cluster.Ledger, servers ...interface{ Snapshot() error }) {
	t.Helper()
	register(t, l, "first")
	var callers sync.WaitGroup
	for g := range 64 {
		callers.Go(func() {
			for i := range 150 {
				if _, err := cluster.Apply(t.Context(), l,
					command.Start(claim.Run{Ref: workload(fmt.Sprintf("w-%d-%d", g, i)), Node: "n"}, nil)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	for _, s := range servers {
		clustertest.Eventually(t, "a snapshot", func() bool { return s.Snapshot() == nil })
	}
}

// lostSnapshots are ways to lose the snapshots of a server.
var lostSnapshots = map[string]func(t *testing.T, dir string){
	"deleted": func(t *testing.T, dir string) { check.NoError(t, os.RemoveAll(dir)) },
	"damaged": func(t *testing.T, dir string) {
		files, err := filepath.Glob(filepath.Join(dir, "*", "state.bin"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, path := range files {
			overwrite(t, path, 100, []byte("damaged"))
		}
	},
}

// TestLeaderWithoutSnapshots loses the leader's snapshots on the disk. A new server joins, with a new snapshot; the
// leader starts again without them.
func TestLeaderWithoutSnapshots(t *testing.T) {
	t.Parallel()
	for name, lose := range lostSnapshots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clustertest.Form(t, 3, clustertest.Options{})
			c.WaitVoters(t, names(c.Hosts())...)
			h := c.Hosts()
			compacted(t, c.Client(), h[0], h[1], h[2])
			for _, h := range c.Hosts() { // raft-wal has deleted entries of its newest file until it is opened again
				h.Stop(t)
			}
			for _, h := range c.Hosts() {
				h.Start(t)
			}
			c.WaitReady(t)
			for _, h := range c.Hosts() { // whoever leads then
				lose(t, filepath.Join(h.Dir, "raft", "snapshots"))
			}
			c.Add(t, "server-4", 3).Start(t)
			c.WaitReady(t)
			c.WaitVoters(t, names(c.Up())...)
			everywhere(t, c, "first")
			leader := c.WaitLeader(t)
			leader.Stop(t)
			lose(t, filepath.Join(leader.Dir, "raft", "snapshots"))
			leader.Start(t)
			register(t, c.Client(), "then")
			everywhere(t, c, "then")
		})
	}
}

// TestSingleServerWithoutSnapshots loses the snapshots of a single server while it is down.
func TestSingleServerWithoutSnapshots(t *testing.T) {
	t.Parallel()
	for name, lose := range lostSnapshots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := cluster.Config{Dir: t.TempDir(), Name: "server-1", BootstrapExpect: 1}
			s := clustertest.StartWith(t, cfg)
			compacted(t, s, s)
			register(t, s, "last")
			check.NoError(t, s.Close())
			lose(t, filepath.Join(cfg.Dir, "raft", "snapshots"))
			s.Restart(t)
			if !has(t, s.Node, "first") || !has(t, s.Node, "last") {
				t.Error("volumes are lost")
			}
			register(t, s, "then")
			check.NoError(t, s.Close())
			lose(t, filepath.Join(cfg.Dir, "raft", "snapshots"))
			check.NoError(t, os.RemoveAll(filepath.Join(cfg.Dir, "state")))
			_, err := cluster.Open(t.Context(), cfg)
			if err == nil || name == "deleted" && !strings.Contains(err.Error(), "operator snapshot restore") {
				t.Errorf("without a ledger: %v", errors.Unwrap(err))
			}
		})
	}
}
