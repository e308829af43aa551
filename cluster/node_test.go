package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

func volume(id string, modes ...claim.AccessMode) claim.Volume {
	if len(modes) == 0 {
		modes = []claim.AccessMode{claim.SingleNodeWriter}
	}
	v := claim.Volume{
		Definition: claim.Definition{
			VolumeRef: claim.VolumeRef{Namespace: "default", ID: id}, PluginID: "hostpath", ExternalID: "ext-" + id,
		},
	}
	for _, m := range modes {
		v.Capabilities = append(v.Capabilities, claim.Capability{AccessMode: m, AttachmentMode: claim.FileSystem})
	}
	return v
}

func workload(id string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: "default", ID: id} }

func want(v claim.Volume, mode claim.Mode) claim.Claim {
	return claim.Claim{
		Volume: v.VolumeRef, Mode: mode,
		AccessMode: v.Capabilities[0].AccessMode, AttachmentMode: v.Capabilities[0].AttachmentMode,
	}
}

// TestSnapshotAndRestart restarts from the ledger's own files, and then without them from raft's snapshot and
// log.
func TestSnapshotAndRestart(t *testing.T) {
	dir := t.TempDir()
	s := clustertest.StartWith(t, cluster.Config{Dir: dir})
	register := func(id string) {
		t.Helper()
		if _, err := cluster.Apply(t.Context(), s, &command.RegisterVolume{Volume: volume(id)}); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(want ...string) {
		t.Helper()
		var got []string
		err := s.Read(t.Context(), func(tx *state.ReadTx) error {
			all, _, err := tx.Volumes(state.VolumeQuery{})
			for _, v := range all {
				got = append(got, v.ID)
			}
			return err
		})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("the ledger has %v, want %v: %v", got, want, err)
		}
	}
	register("a")
	s.Restart(t)
	holds("a")
	check.NoError(t, s.Snapshot())
	if stats := s.Stats(); stats.LeaderName != "server-1" || !stats.Leader || s.Size() == 0 || stats.Err != nil {
		t.Errorf("stats: %+v", stats)
	}
	if made, err := filepath.Glob(filepath.Join(dir, "raft", "snapshots", "*")); err != nil || len(made) == 0 {
		t.Errorf("there is no snapshot: %v", err)
	}
	register("b")
	s.Restart(t)
	holds("a", "b")
	check.NoError(t, s.Close())
	check.NoError(t, os.RemoveAll(filepath.Join(dir, "state")))
	s.Restart(t)
	holds("a", "b")
	register("c")
	holds("a", "b", "c")
}

func TestWhileLeader(t *testing.T) {
	s := clustertest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	calls := make(chan context.Context)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		s.WhileLeader(ctx, func(ctx context.Context) {
			calls <- ctx
			<-ctx.Done()
		})
	}()
	leading := <-calls
	if leading.Err() != nil {
		t.Error("the leadership's context ended at once")
	}
	cancel()
	<-returned
	if leading.Err() == nil {
		t.Error("the caller's context has ended, but the leader's has not")
	}

	returned = make(chan struct{})
	go func() {
		defer close(returned)
		s.WhileLeader(t.Context(), func(ctx context.Context) { calls <- ctx; <-ctx.Done() })
	}()
	<-calls
	check.NoError(t, s.Close())
	<-returned
	if s.Leader() {
		t.Error("a closed node leads")
	}
}

// TestCloseUnderLoad closes a node while callers are active. Each of them gets an answer, and acknowledged
// changes are kept.
func TestCloseUnderLoad(t *testing.T) {
	s := clustertest.Start(t)
	var acknowledged sync.Map
	var callers sync.WaitGroup
	started := make(chan struct{}, 1)
	for g := range 32 {
		callers.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("w-%d-%d", g, i)
				_, err := cluster.Apply(context.Background(), s,
					command.Start(claim.Run{Ref: workload(id), Node: "a"}, nil))
				if err != nil {
					if !errors.Is(err, command.ErrClosed) {
						t.Errorf("%s: %v", id, err)
					}
					return
				}
				acknowledged.Store(id, true)
				select {
				case started <- struct{}{}:
				default:
				}
			}
		})
	}
	<-started
	check.NoError(t, s.Close())
	callers.Wait()
	if err := s.WaitReady(t.Context()); err != nil {
		t.Errorf("a node that was ready: %v", err)
	}
	if err := s.Read(t.Context(), func(*state.ReadTx) error { return nil }); !errors.Is(err, command.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	s.Restart(t)
	err := s.Read(t.Context(), func(tx *state.ReadTx) (err error) {
		acknowledged.Range(func(id, _ any) bool {
			_, err = tx.Workload(workload(id.(string)))
			return err == nil
		})
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestCallerGivesUp cancels a call before its command was sent, when nothing can have happened, and after
// that, when the outcome is unknown.
func TestCallerGivesUp(t *testing.T) {
	s := clustertest.Start(t)
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := cluster.Apply(ctx, s,
		command.End(claim.Run{Ref: workload("w")})); !errors.Is(err, cause) || errors.Is(err, command.ErrUncertain) {
		t.Errorf("cancelled before: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Microsecond, cause)
		_, err := cluster.Apply(ctx, s, command.End(claim.Run{Ref: workload("w")}))
		cancel()
		if errors.Is(err, command.ErrUncertain) {
			if !errors.Is(err, cause) {
				t.Errorf("cancelled during: %v", err)
			}
			return
		}
	}
	t.Error("no caller gave up in time")
}

// TestNoLeader opens a server that waits for other servers.
func TestNoLeader(t *testing.T) {
	n, err := cluster.Open(t.Context(), cluster.Config{Dir: t.TempDir(), Name: "server-1", BootstrapExpect: 3})
	check.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := cluster.Apply(ctx, n,
		&command.RegisterVolume{Volume: volume("a")}); !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, command.ErrUncertain) {
		t.Errorf("register: %v", err)
	}
	waiting := make(chan error)
	go func() { waiting <- n.WaitReady(context.Background()) }()
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, command.ErrClosed) {
		t.Errorf("wait on a closed node: %v", err)
	}
	if _, err := cluster.Open(t.Context(), cluster.Config{Dir: t.TempDir(), Name: "a/b"}); err == nil {
		t.Error("an invalid name is accepted")
	}
}

func TestIdentityIsGivenOnce(t *testing.T) {
	n := clustertest.Start(t)
	first, err := n.Identity(t.Context())
	if err != nil || first.ID == "" || first.CreatedAt.IsZero() {
		t.Fatalf("the identity is %+v, %v", first, err)
	}
	check.NoError(t, n.Snapshot())
	n.Restart(t)
	again, err := n.Identity(t.Context())
	if err != nil || again.ID != first.ID {
		t.Errorf("after a restart the identity is %+v, not %+v (%v)", again, first, err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if c, err := n.Identity(t.Context()); err != nil || c.ID != first.ID {
				t.Errorf("a caller got %+v, %v", c, err)
			}
		})
	}
	wg.Wait()
}
