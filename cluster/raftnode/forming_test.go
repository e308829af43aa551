package raftnode

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/test/lib/check"
)

// TestJoinsOneCluster: a server without raft state joins the cluster that asked first, also after a restart, and forms
// none.
func TestJoinsOneCluster(t *testing.T) {
	conf := raft.DefaultConfig()
	conf.LocalID, conf.Logger = "a", hclog.NewNullLogger()
	_, network := raft.NewInmemTransport("a")
	store := raft.NewInmemStore()
	r, err := raft.NewRaft(conf, ignoring{}, store, store, raft.NewInmemSnapshotStore(), network)
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, r.Shutdown().Error()) })
	n := &Node{Raft: r, cfg: Config{ID: "a", Dir: t.TempDir(), BootstrapExpect: 1}}
	alone := promise{To: "a", Servers: []string{"a"}}
	for _, asks := range []string{"first", "second", "third"} {
		f := check.Must(newForming(n, hclog.NewNullLogger()))(t) // as at a restart
		if joins := check.Must(f.join(asks))(t); joins != "first" {
			t.Errorf("the %s cluster asks, and it joins the %s", asks, joins)
		}
		check.NoError(t, f.abandon())
		if f.give(t.Context(), alone) {
			t.Error("it forms a cluster, and has promised to join one")
		}
	}
}
