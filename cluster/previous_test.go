package cluster_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// TestLedgersOfThePreviousRelease opens ledgers that an earlier release wrote (testdata/README.md), adds the
// fields that are missing in them, and continues with them.
func TestLedgersOfThePreviousRelease(t *testing.T) {
	for name, row := range map[string]struct {
		archive string
		prepare func(t *testing.T, dir string)
		running []string // on node b
	}{
		"closed": {"previous-closed.tar.gz", func(*testing.T, string) {}, []string{"plain"}},
		"killed": {"previous-killed.tar.gz", markOpen, []string{"last", "plain"}},
		// After a reboot, everything is rebuilt from the snapshot and the log.
		"rebuilt": {"previous-killed.tar.gz", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "state", "open"), []byte("another boot"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"last", "plain"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			unpack(t, filepath.Join("testdata", row.archive), dir)
			row.prepare(t, dir)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			node, err := cluster.Open(ctx, cluster.Config{Dir: dir, Name: "server-1", BootstrapExpect: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := node.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := node.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			checkPrevious(t, node, row.running)
			goOnFromPrevious(t, node)
		})
	}
}

// checkPrevious checks the records that the earlier release wrote.
func checkPrevious(t *testing.T, node *cluster.Node, running []string) {
	t.Helper()
	want := map[string]claim.State{
		"v0 w0": claim.Taken, "v5 w0": claim.Taken, "v1 w1": claim.Unpublishing, "v5 w1": claim.Unpublishing,
		"v2 w2": claim.NodeDetached,
		"v5 w2": claim.Unpublishing, "v3 w3": claim.ControllerDetached, "v5 w3": claim.Unpublishing,
		"v4 w4": claim.ReadyToFree, "v5 w4": claim.Unpublishing,
	}
	err := node.Read(t.Context(), func(tx *state.ReadTx) error {
		volumes, _, err := tx.Volumes(state.VolumeQuery{})
		if err != nil || len(volumes) != 6 {
			t.Errorf("%d volumes, %v", len(volumes), err)
		}
		all, err := tx.AllClaims()
		if err != nil {
			return err
		}
		got := map[string]claim.State{}
		for _, c := range all {
			got[c.Volume.ID+" "+c.Workload.ID] = c.State
			onNode := map[string]string{"w0": "a", "w1": "b", "w2": "a", "w3": "b", "w4": "a"}[c.Workload.ID]
			if c.Damaged() || c.Mode != claim.Write || c.Node != onNode {
				t.Errorf("claim %+v", c)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("claims %v, want %v", got, want)
		}
		live, err := tx.WorkloadsOn("b")
		if err != nil || len(live) != len(running) {
			t.Fatalf("on node b: %+v, %v, want %v", live, err, running)
		}
		for i, w := range live {
			if w.Ref.ID != running[i] {
				t.Errorf("on node b: %q, want %q", w.Ref, running[i])
			}
		}
		for node, claims := range map[string]int{"a": 6, "b": 4} {
			if on, err := tx.ClaimsOn(node); err != nil || len(on) != claims {
				t.Errorf("on node %s: %d claims, %v, want %d", node, len(on), err, claims)
			}
		}
		if tokens, err := tx.Tokens(""); err != nil || len(tokens) != 5 {
			t.Errorf("%d tokens, %v", len(tokens), err)
		}
		if d, err := tx.Driver("hostpath"); err != nil || d.NodesExpected != 2 || d.NodesHealthy != 1 || len(d.Nodes) != 2 {
			t.Errorf("driver %+v, %v", d, err)
		}
		if _, found, err := tx.SigningKey(); err != nil || !found {
			t.Errorf("signing key: %v, %v", found, err)
		}
		if c, found, err := tx.Cluster(); err != nil || !found || c.ID == "" {
			t.Errorf("cluster: %+v, %v", c, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// goOnFromPrevious uses features that the earlier release did not have.
func goOnFromPrevious(t *testing.T, node *cluster.Node) {
	t.Helper()
	ctx := t.Context()
	v0, _, err := node.Volume(ctx, claim.VolumeRef{Namespace: "default", ID: "v0"},
		cluster.Blocking{})
	if err != nil {
		t.Fatal(err)
	}
	again := v0
	again.ID = "again"
	if _, err := node.RegisterVolume(ctx, again); !errors.Is(err, claim.ErrDuplicate) {
		t.Errorf("a volume that the earlier release registered, under another name: %v", err)
	}
	if _, err := node.AwaitWorkload(ctx, claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "next"}, Node: "b"},
		[]claim.WorkloadRef{{Namespace: "default", ID: "w0"}}); err != nil {
		t.Error(err)
	}
	if _, err := node.DeleteNode(ctx, "a"); !errors.Is(err, claim.ErrNodeInUse) {
		t.Errorf("node a has claims: %v", err)
	}
	down, err := node.SetNodeStatus(ctx, "a", claim.NodeDown, "")
	if err != nil || len(down.Ended) != 1 {
		t.Fatalf("%+v, %v", down, err)
	}
	freed := map[string]bool{}
	for _, c := range down.Freed {
		freed[c.Volume.ID+" "+c.Workload.ID] = true
	}
	if want := map[string]bool{"v0 w0": true, "v5 w0": true, "v5 w2": true, "v5 w4": true}; !maps.Equal(freed, want) {
		t.Errorf("released %v, want %v", freed, want)
	}
	var free []command.Advance
	for _, c := range down.Freed {
		free = append(free, command.Advance{Volume: c.Volume, Workload: c.Workload, Index: c.Index, To: claim.Freed})
	}
	if result, err := node.AdvanceClaims(ctx, "", free...); err != nil || !result.Items[0].Gone {
		t.Errorf("%+v, %v", result, err)
	}
}

// markOpen marks the ledger as open by a process of this boot.
func markOpen(t *testing.T, dir string) {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "state", "open"), boot[:len(boot)-1], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(plain)
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+header.Name))
		if header.FileInfo().IsDir() {
			err = os.MkdirAll(path, 0o700)
		} else {
			var data []byte
			if data, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(path, data, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
