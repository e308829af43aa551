package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/clustertest"
	"github.com/pannier/pannier/cluster/state"
)

func tokenID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func intent(n int, workload claim.WorkloadRef) claim.Token {
	return claim.Token{ID: tokenID(n), Workload: workload, Node: "a", Service: "web", Consul: "default"}
}

// TestTokensAreKept restarts, restores a snapshot, and deletes all files except raft's.
func TestTokensAreKept(t *testing.T) {
	dir := t.TempDir()
	s := clustertest.StartWith(t, cluster.Config{Dir: dir})
	ctx := t.Context()
	if _, err := s.StartWorkload(ctx, claim.Run{Ref: workload("w"), Node: "a"}, nil, intent(0, workload("w")),
		intent(1, workload("w"))); err != nil {
		t.Fatal(err)
	}
	check := func(when string, want ...string) {
		t.Helper()
		err := s.Read(ctx, func(tx *state.ReadTx) error {
			for name, read := range map[string]func() ([]claim.Token, error){
				"all": func() ([]claim.Token, error) { return tx.Tokens("default") }, "on the node": func() ([]claim.Token,
					error,
				) {
					return tx.TokensOn("a")
				},
			} {
				var got []string
				found, err := read()
				for _, token := range found {
					got = append(got, token.ID[34:]+token.Accessor)
				}
				if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, %s: %q, %v, want %q", when, name, got, err, want)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := s.PutSigningKey(ctx, claim.SigningKey{ID: "k", Public: []byte("{}"), Sealed: []byte("sealed")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	answered := intent(1, workload("w"))
	answered.Accessor = tokenID(9)
	if _, err := s.PutToken(ctx, answered); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutToken(ctx, intent(2, workload("w"))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutToken(ctx, intent(3, workload("unknown"))); !errors.Is(err, claim.ErrNotRunning) {
		t.Errorf("of an unknown workload: %v", err)
	}
	if _, err := s.DeleteTokens(ctx, tokenID(2), tokenID(77)); err != nil {
		t.Fatal(err)
	}
	want := []string{"00", "01" + tokenID(9)}
	check("at first", want...)
	s.Restart(t)
	check("after a restart", want...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
	check("rebuilt from raft", want...)
	again, err := s.PutSigningKey(ctx, claim.SigningKey{ID: "other", Public: []byte("{}"), Sealed: []byte("sealed")})
	if err != nil || again.ID != key.ID || !again.CreatedAt.Equal(key.CreatedAt) {
		t.Errorf("the signing key is %+v, was %+v, %v", again, key, err)
	}
}

// TestOneSigningKey creates many keys concurrently. All callers get the same one.
func TestOneSigningKey(t *testing.T) {
	s := clustertest.Start(t)
	got := make([]string, 16)
	var callers sync.WaitGroup
	for i := range got {
		callers.Go(func() {
			k, err := s.PutSigningKey(t.Context(),
				claim.SigningKey{ID: fmt.Sprint("k", i), Public: []byte("{}"), Sealed: []byte{1}})
			if err != nil {
				t.Error(err)
			}
			got[i] = k.ID
		})
	}
	callers.Wait()
	for _, id := range got {
		if id != got[0] {
			t.Fatalf("several keys: %q", got)
		}
	}
}
