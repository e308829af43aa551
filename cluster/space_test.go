package cluster_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestFullDisk fills a real disk under a node. The node refuses commands, survives, and continues when space
// is free again.
func TestFullDisk(t *testing.T) {
	testbin.RequireRoot(t, "a full disk under the ledger")
	disk := t.TempDir()
	check.NoError(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=128m"))
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(disk, "ledger")
	s := clustertest.StartWith(t, cluster.Config{Dir: dir})
	ctx := t.Context()
	v := volume("a")
	if _, err := cluster.Apply(ctx, s, &command.RegisterVolume{Volume: v}); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Apply(ctx, s,
		command.Start(claim.Run{Ref: workload("w"), Node: "n"}, []claim.Claim{want(v, claim.Write)})); err != nil {
		t.Fatal(err)
	}

	filler := filepath.Join(disk, "filler")
	leave(t, disk, filler, 32<<20)
	_, err := cluster.Apply(ctx, s, &command.RegisterVolume{Volume: volume("b")})
	if !errors.Is(err, command.ErrDiskFull) || !strings.Contains(err.Error(), dir) {
		t.Errorf("register with 32 MiB left: %v", err)
	}
	token := claim.Token{ID: "00000000-0000-4000-8000-000000000000", Workload: workload("w"), Node: "n", Service: "web", Consul: "default"}
	if _, err := cluster.Apply(ctx, s, &command.PutToken{Token: token}); !errors.Is(err, command.ErrDiskFull) {
		t.Errorf("add a token with 32 MiB left: %v", err)
	}
	if _, err := cluster.Apply(ctx, s, &command.DeleteTokens{IDs: []string{token.ID}}); err != nil {
		t.Errorf("delete a token with 32 MiB left: %v", err)
	}
	if _, err := cluster.Apply(ctx, s, command.End(claim.Run{Ref: workload("w")})); err != nil {
		t.Errorf("release with 32 MiB left: %v", err)
	}
	leave(t, disk, filler, 0)
	if _, err := cluster.Apply(ctx, s,
		command.End(claim.Run{Ref: workload("w")})); !errors.Is(err, command.ErrDiskFull) {
		t.Errorf("release with nothing left: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close with nothing left: %v", err)
	}
	leave(t, disk, filler, 0) // closing freed some space
	if _, err := cluster.Open(ctx, cluster.Config{Dir: dir, Name: "server-1", BootstrapExpect: 1}); !errors.Is(err,
		command.ErrDiskFull) {
		t.Errorf("open with nothing left: %v", err)
	}
	check.NoError(t, os.Remove(filler))
	s.Restart(t)
	if _, err := cluster.Apply(ctx, s, &command.RegisterVolume{Volume: volume("b")}); err != nil {
		t.Errorf("with free space: %v", err)
	}
}

// leave fills a disk until only the given number of bytes is free.
func leave(t *testing.T, disk, filler string, free int64) {
	t.Helper()
	var stat syscall.Statfs_t
	check.NoError(t, syscall.Statfs(disk, &stat))
	f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	check.NoError(t, err)
	defer f.Close()
	zero, err := os.Open("/dev/zero")
	check.NoError(t, err)
	defer zero.Close()
	fill := int64(stat.Bavail)*stat.Bsize - free
	if _, err := io.CopyN(f, zero, fill); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
