package tokens

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
)

// files reads all files below a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = string(content)
		return err
	})
	check.NoError(t, err)
	return all
}

func keySet(t *testing.T, w *world) jose.JSONWebKeySet {
	t.Helper()
	raw, err := w.JWKS(w.within())
	check.NoError(t, err)
	var set jose.JSONWebKeySet
	check.NoError(t, json.Unmarshal(raw, &set))
	return set
}

func TestJWTNamesItsSubject(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, login, minting)
	w.derive(w.start("minted", "a", "default", "web")[0])
	w.derive(w.start("w", "a", "login", "web")[0])
	if len(f.jwts) != 1 {
		t.Fatalf("%d JWTs", len(f.jwts))
	}
	parsed, err := jwt.ParseSigned(f.jwts[0], []jose.SignatureAlgorithm{jose.ES256})
	check.NoError(t, err)
	set := keySet(t, w)
	if len(set.Keys) != 1 || !set.Keys[0].IsPublic() || set.Keys[0].KeyID != parsed.Headers[0].KeyID ||
		set.Keys[0].KeyID == "" || set.Keys[0].Use != "sig" {
		t.Errorf("the key set is %+v, the JWT's key %q", set, parsed.Headers[0].KeyID)
	}
	var got map[string]any
	var registered jwt.Claims
	check.NoError(t, parsed.Claims(set.Keys[0].Key, &got, &registered))
	cluster, err := w.clusterID(t.Context())
	check.NoError(t, err)
	for claim, want := range map[string]any{
		"iss": "pannier", "sub": "default/w/web", "pannier_cluster": cluster, "pannier_node": "a",
		"pannier_namespace": "default", "pannier_workload": "w", "pannier_service": "web",
	} {
		if got[claim] != want {
			t.Errorf("%s is %v, want %v", claim, got[claim], want)
		}
	}
	err = registered.ValidateWithLeeway(jwt.Expected{
		Issuer: "pannier", AnyAudience: jwt.Audience{"consul.io"},
		Time: time.Now(),
	}, time.Second)
	if err != nil || registered.ID == "" || registered.Expiry.Time().Sub(registered.IssuedAt.Time()) != 5*time.Minute ||
		registered.NotBefore == nil {
		t.Errorf("the registered claims are %+v: %v", registered, err)
	}
}

// TestJWTIsForItsConsul checks that each Consul has its own audience.
func TestJWTIsForItsConsul(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, login)
	w.Audiences = map[string]string{"login": "consul.example"}
	w.derive(w.start("w", "a", "login", "web")[0])
	parsed, err := jwt.ParseSigned(f.jwts[0], []jose.SignatureAlgorithm{jose.ES256})
	check.NoError(t, err)
	var got jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&got); err != nil || !got.Audience.Contains("consul.example") ||
		len(got.Audience) != 1 {
		t.Errorf("the audience is %v, %v", got.Audience, err)
	}
}

// TestKeyIsMadeOnce checks that concurrent callers make one key, which is found again.
func TestKeyIsMadeOnce(t *testing.T) {
	w := newWorld(t, newFake().ask, login)
	var many sync.WaitGroup
	sets := make([]string, 16)
	for i := range sets {
		one := New(w.Config)
		many.Go(func() {
			set, err := one.JWKS(w.within())
			if err != nil {
				t.Error(err)
			}
			sets[i] = string(set)
		})
	}
	many.Wait()
	w.ledger.Restart(t)
	w.open(w.Config)
	again, err := w.JWKS(w.within())
	check.NoError(t, err)
	for _, set := range sets {
		if set != string(again) {
			t.Fatalf("there are the keys %s and %s", set, again)
		}
	}
}

// TestKeyIsSealed checks that the ledger shows only the public part, and that another agent's secrets key cannot
// open the key.
func TestKeyIsSealed(t *testing.T) {
	w := newWorld(t, newFake().ask, login)
	keySet(t, w)
	err := w.ledger.Read(t.Context(), func(tx *state.ReadTx) error {
		k, found, err := tx.SigningKey()
		if err != nil || !found {
			t.Fatalf("found %v, %v", found, err)
		}
		opened, err := w.Sealer.Unseal(k.Sealed, ForSigningKey(k.ID))
		if err != nil {
			return err
		}
		if bytes.Contains(k.Sealed, []byte(opened[privateKey])) || bytes.Contains(k.Public, []byte(`"d"`)) {
			t.Error("the private part is readable")
		}
		if _, err := w.Sealer.Unseal(k.Sealed, ForSigningKey("another")); err == nil {
			t.Error("it opens as another key")
		}
		return nil
	})
	check.NoError(t, err)
	check.NoError(t, os.Remove(filepath.Join(w.dir, "secrets.key")))
	w.open(w.Config)
	if _, err := w.JWKS(w.within()); err == nil || !strings.Contains(err.Error(), "a secrets key other than") {
		t.Errorf("with another secrets key: %v", err)
	}
}
