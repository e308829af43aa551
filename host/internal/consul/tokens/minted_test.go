package tokens

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// TestMinted follows tokens that are minted through their life.
func TestMinted(t *testing.T) {
	f := newFake()
	open := func(t *testing.T) *world { return newWorld(t, f.ask, minting) }
	// has returns the accessors of a cluster's tokens in Consul.
	has := func(w *world) (of []string) {
		cluster, err := w.clusterID(t.Context())
		check.NoError(t, err)
		f.mu.Lock()
		defer f.mu.Unlock()
		for accessor, token := range f.tokens["default"] {
			if token.Subject.Cluster == cluster {
				of = append(of, accessor)
			}
		}
		slices.Sort(of)
		return of
	}

	t.Run("derived, read and revoked", func(t *testing.T) {
		w := open(t)
		both := w.start("w", "a", "default", "web", "api")
		derived, secret := w.derive(both[0])
		want := w.token(both[0].ID)
		if want.Accessor != "" {
			t.Errorf("noted %+v", want)
		}
		if want.Accessor = want.ID; derived != want {
			t.Errorf("derived %+v, want %+v", derived, want)
		}
		if got := has(w); !slices.Equal(got, []string{both[0].ID}) {
			t.Errorf("Consul has %v", got)
		}
		if _, again := w.derive(both[0]); again != secret {
			t.Error("the second answer is another token")
		}
		minted := both[0]
		minted.Accessor = minted.ID
		if err := w.Read(w.within(), minted, secret); err != nil {
			t.Errorf("read back: %v", err)
		}
		theirs, other := w.derive(both[1])
		if err := w.Read(w.within(), minted, other); status.Code(err) != codes.Internal {
			t.Errorf("read back by the secret of another token: %v", err)
		}
		for range 2 {
			if err := w.Revoke(w.within(), both[0], ""); err != nil {
				t.Errorf("revoke: %v", err)
			}
		}
		if err := w.Read(w.within(), minted, secret); status.Code(err) != codes.NotFound {
			t.Errorf("read after its end: %v", err)
		}
		if err := w.Read(w.within(), theirs, other); err != nil {
			t.Errorf("read the other one: %v", err)
		}
		if noted := w.noted(); !slices.Equal(noted, []string{both[1].ID}) {
			t.Errorf("the ledger has %v", noted)
		}
		if _, err := cluster.Apply(t.Context(), w.ledger,
			&command.DeleteTokens{IDs: []string{both[1].ID}}); err != nil {
			t.Fatal(err)
		}
		if err := w.Revoke(w.within(), both[1], ""); err != nil || len(has(w)) != 0 {
			t.Errorf("revoke one that the ledger does not know: %v, Consul has %v", err, has(w))
		}
	})

	t.Run("ended between intent, answer and revocation", func(t *testing.T) {
		w, other := open(t), open(t)
		other.derive(other.start("w", "a", "default", "web")[0])
		lives := w.start("lives", "a", "default", "web")[0]
		w.derive(lives)
		intended := w.start("intended", "a", "default", "web")[0]
		derived := w.start("derived", "a", "default", "web")[0]
		w.derive(derived)
		again := w.start("again", "a", "default", "web")[0]
		w.derive(again)
		for _, id := range []string{"intended", "derived", "again"} {
			w.stop(id)
		}
		fresh := w.start("again", "a", "default", "web")[0]
		w.derive(fresh)

		dead := []string{intended.ID, derived.ID, again.ID}
		if _, found := swept(w.sweep(true)); !slices.Equal(slices.Sorted(maps.Keys(found)), dead) || len(has(w)) != 4 {
			t.Errorf("a dry run found %v, Consul has %v", found, has(w))
		}
		if revoked, left := swept(w.sweep(false)); !slices.Equal(revoked, dead) || len(left) != 0 {
			t.Errorf("revoked %v, left %v", revoked, left)
		}
		want := []string{lives.ID, fresh.ID}
		if there := has(w); !slices.Equal(there, want) || !slices.Equal(w.noted(), want) {
			t.Errorf("Consul has %v, the ledger %v, want %v", there, w.noted(), want)
		}
		if len(has(other)) != 1 {
			t.Errorf("another cluster's are %v", has(other))
		}
	})

	t.Run("the ledger of yesterday", func(t *testing.T) {
		w := open(t)
		lives := w.start("lives", "a", "default", "web")[0]
		w.derive(lives)
		check.NoError(t, w.ledger.Close())
		yesterday := filepath.Join(w.dir, "yesterday")
		check.NoError(t, os.CopyFS(yesterday, os.DirFS(filepath.Join(w.dir, "cluster"))))
		w.ledger.Restart(t)
		w.open(w.Config)
		later := w.start("later", "a", "default", "web")[0]
		w.derive(later)
		check.NoError(t, w.ledger.Close())
		check.NoError(t, os.RemoveAll(filepath.Join(w.dir, "cluster")))
		check.NoError(t, os.Rename(yesterday, filepath.Join(w.dir, "cluster")))
		w.ledger.Restart(t)
		w.open(w.Config)
		if revoked, _ := swept(w.sweep(false)); !slices.Equal(revoked, []string{later.ID}) {
			t.Errorf("revoked %v", revoked)
		}
		if there := has(w); !slices.Equal(there, []string{lives.ID}) {
			t.Errorf("Consul has %v", there)
		}
	})
}
