package tokens

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// has returns the tokens of this world's cluster in Consul, by accessor.
func (w *world) has(c *consul.Cluster) map[string]*api.ACLTokenListEntry {
	w.t.Helper()
	cluster, err := w.clusterID(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]*api.ACLTokenListEntry{}
	for _, entry := range c.Tokens(w.t) {
		if strings.Contains(entry.Description, cluster) {
			all[entry.AccessorID] = entry
		}
	}
	return all
}

// TestMinted follows tokens that the real plugin mints in a real Consul through their life.
func TestMinted(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true})
	c.Policy(t, "sids", `acl = "write"`)
	plugins, supervised := sids(t, map[string]string{"default": c.TokenFile(t, c.Token(t, "sids"))})
	world := func(t *testing.T) *world { return newWorld(t, identities(plugins), c.Service("default", "")) }

	t.Run("derived, read and revoked", func(t *testing.T) {
		w := world(t)
		both := w.start("w", "a", "default", "web", "api")
		derived, secret := w.derive(both[0])
		want := w.token(both[0].ID)
		if want.Accessor != "" {
			t.Errorf("noted %+v", want)
		}
		if want.Accessor = want.ID; derived != want {
			t.Errorf("derived %+v, want %+v", derived, want)
		}
		cluster, err := w.clusterID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := w.has(c)[both[0].ID]
		if got == nil || !got.Local || len(got.ServiceIdentities) != 1 || got.ServiceIdentities[0].ServiceName != "web" ||
			got.Description != "_pannier_si ["+cluster+"] [a] [default/w] [web]" {
			t.Errorf("Consul has %+v", got)
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
		if _, err := w.ledger.DeleteTokens(t.Context(), both[1].ID); err != nil {
			t.Fatal(err)
		}
		if err := w.Revoke(w.within(), both[1], ""); err != nil || len(w.has(c)) != 0 {
			t.Errorf("revoke one that the ledger does not know: %v, Consul has %v", err, w.has(c))
		}
	})

	t.Run("ended between intent, answer and revocation", func(t *testing.T) {
		w, other := world(t), world(t)
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
		if _, found := swept(w.sweep(true)); !slices.Equal(slices.Sorted(maps.Keys(found)), dead) || len(w.has(c)) != 4 {
			t.Errorf("a dry run found %v, Consul has %v", found, w.has(c))
		}
		if revoked, left := swept(w.sweep(false)); !slices.Equal(revoked, dead) || len(left) != 0 {
			t.Errorf("revoked %v, left %v", revoked, left)
		}
		want := []string{lives.ID, fresh.ID}
		if has := slices.Sorted(maps.Keys(w.has(c))); !slices.Equal(has, want) || !slices.Equal(w.noted(), want) {
			t.Errorf("Consul has %v, the ledger %v, want %v", has, w.noted(), want)
		}
		if len(other.has(c)) != 1 {
			t.Errorf("another cluster's are %v", other.has(c))
		}
	})

	t.Run("the ledger of yesterday", func(t *testing.T) {
		w := world(t)
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
		if has := slices.Collect(maps.Keys(w.has(c))); !slices.Equal(has, []string{lives.ID}) {
			t.Errorf("Consul has %v", has)
		}
	})

	t.Run("the plugin is killed in the middle", func(t *testing.T) {
		w := world(t)
		var tokens []claim.Token
		for i := range 60 {
			tokens = append(tokens, w.start(fmt.Sprint("w", i), "a", "default", "web")...)
		}
		var derives sync.WaitGroup
		first := make(chan struct{}, 100*len(tokens))
		for _, token := range tokens {
			derives.Go(func() {
				for {
					_, _, err := w.Derive(w.within(), token)
					first <- struct{}{}
					if err == nil {
						return
					}
					if status.Code(err) != codes.Unavailable { // else the caller tries again
						t.Errorf("derive: %v", err)
						return
					}
				}
			})
		}
		<-first
		check.NoError(t, syscall.Kill(supervised.Status()[0].PID, syscall.SIGKILL))
		derives.Wait()
		if has := slices.Sorted(maps.Keys(w.has(c))); !slices.Equal(has, w.noted()) {
			t.Errorf("Consul has %v, the ledger %v", has, w.noted())
		}
		for i := range tokens {
			w.stop(fmt.Sprint("w", i))
		}
		if report := w.sweep(false); report.Err() != nil || len(w.has(c)) != 0 || len(w.noted()) != 0 {
			t.Errorf("%v; Consul has %v, the ledger %v", report.Err(), w.has(c), w.noted())
		}
	})

	t.Run("Consul is away", func(t *testing.T) {
		proxy := c.Proxy(t, 0)
		w := newWorld(t, identities(plugins), proxy.Service(c.Service("default", "")))
		token := w.start("w", "a", "default", "web")[0]
		proxy.Down()
		if _, _, err := w.Derive(w.within(), token); status.Code(err) != codes.Unavailable {
			t.Errorf("derive: %v", err)
		}
		if err := w.Revoke(w.within(), token, ""); status.Code(err) != codes.Unavailable {
			t.Errorf("revoke: %v", err)
		}
		w.stop("w")
		report := w.sweep(false)
		if len(report.Problems) != 1 || status.Code(report.Problems[0]) != codes.Unavailable || len(report.Swept) != 1 ||
			report.Swept[0].Revoked {
			t.Errorf("the report is %+v", report)
		}
		if !slices.Equal(w.noted(), []string{token.ID}) {
			t.Errorf("the ledger has %v", w.noted())
		}
		proxy.Up(t)
		if report := w.sweep(false); report.Err() != nil || len(w.noted()) != 0 {
			t.Errorf("%v; the ledger has %v", report.Err(), w.noted())
		}
	})

	t.Run("stopped in the middle of a derivation", func(t *testing.T) {
		proxy := c.Proxy(t, 0)
		w := newWorld(t, identities(plugins), proxy.Service(c.Service("default", "")))
		token := w.start("w", "a", "default", "web")[0]
		proxy.Add(consul.Match{Method: "PUT", Path: "/v1/acl/token"}, consul.Stall())
		ctx, cancel := context.WithCancel(w.within())
		var derive sync.WaitGroup
		derive.Go(func() {
			if _, _, err := w.Derive(ctx, token); err == nil {
				t.Error("derived")
			}
		})
		check.Eventually(t, "Consul is asked", func() bool { return proxy.Count("PUT", "/v1/acl/token") > 0 })
		cancel()
		derive.Wait()
		if err := w.Revoke(w.within(), token, ""); err != nil { // there is none yet
			t.Fatal(err)
		}
		w.stop("w")
		proxy.Clear()
		check.Eventually(t, "the request comes late", func() bool { return len(w.has(c)) == 1 })
		if noted := w.noted(); !slices.Equal(noted, []string{token.ID}) {
			t.Errorf("the ledger has forgotten it: it has %v", noted)
		}
		if report := w.sweep(false); report.Err() != nil || len(w.has(c)) != 0 || len(w.noted()) != 0 {
			t.Errorf("%v; Consul has %v, the ledger %v", report.Err(), w.has(c), w.noted())
		}
	})
}

// TestGivenByLogin checks that a real Consul accepts the JWTs.
func TestGivenByLogin(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true})
	c.Policy(t, "sids", `acl = "write"`)
	byLogin := c.Service("default", "")
	byLogin.AuthMethod = "pannier"
	plugins, _ := sids(t, nil)
	w := newWorld(t, identities(plugins), byLogin)
	der, err := x509.MarshalPKIXPublicKey(keySet(t, w).Keys[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	c.JWT(t, consul.JWTMethod{
		Name: "pannier", Issuer: jwtIssuer, Audience: DefaultAudience,
		Keys: []string{string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))},
	})

	token := w.start("w", "a", "default", "web")[0]
	derived, secret := w.derive(token)
	got := w.has(c)[derived.Accessor]
	if got == nil || len(got.ServiceIdentities) != 1 || got.ServiceIdentities[0].ServiceName != "web" ||
		got.ExpirationTime == nil || !derived.ExpiresAt.Equal(*got.ExpirationTime) {
		t.Errorf("derived %+v, Consul has %+v", derived, got)
	}
	if noted := w.token(token.ID); noted != derived || noted.Accessor == "" {
		t.Errorf("noted %+v", noted)
	}
	if err := w.Read(w.within(), derived, secret); err != nil {
		t.Errorf("read back: %v", err)
	}
	if err := w.Revoke(w.within(), token, secret); err != nil || len(w.has(c)) != 0 || len(w.noted()) != 0 {
		t.Errorf("revoke: %v; Consul has %v, the ledger %v", err, w.has(c), w.noted())
	}

	// The node has lost the secret, and one answer was lost on the way.
	lost := w.start("lost", "a", "default", "api")[0]
	forgotten, _ := w.derive(lost)
	kept, _ := w.derive(lost)
	if forgotten.Accessor == kept.Accessor || len(w.has(c)) != 2 {
		t.Errorf("two logins gave %v and %v", forgotten.Accessor, kept.Accessor)
	}
	w.stop("lost")
	report := w.sweep(false)
	if _, left := swept(report); report.Err() != nil || len(left) != 1 ||
		!strings.Contains(left[lost.ID], "cannot be revoked and expires at "+kept.ExpiresAt.UTC().Format(time.RFC3339)) {
		t.Errorf("without a token of the plugin's own: %v, left %v", report.Err(), left)
	}
	if len(w.noted()) != 1 {
		t.Errorf("the ledger has %v", w.noted())
	}

	// A plugin that has a token may list and revoke the tokens.
	plugins, _ = sids(t, map[string]string{"default": c.TokenFile(t, c.Token(t, "sids"))})
	w.Identity = identities(plugins)
	lives, _ := w.derive(w.start("lives", "a", "default", "web")[0])
	report = w.sweep(false)
	if report.Err() != nil || len(report.Swept) != 2 || len(w.noted()) != 1 {
		t.Errorf("with a token of the plugin's own: %+v, the ledger has %v", report, w.noted())
	}
	if has := slices.Collect(maps.Keys(w.has(c))); !slices.Equal(has, []string{lives.Accessor}) {
		t.Errorf("Consul has %v, want %v", has, lives.Accessor)
	}
}
