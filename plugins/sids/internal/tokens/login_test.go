package tokens

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// loginWorld is a Consul with an auth method that has the signer's key. The issuer has no token.
func loginWorld(t *testing.T) (*world, *signer) {
	t.Helper()
	w := newWorld(t, 1)
	s := newSigner(t)
	w.JWT(t, consul.JWTMethod{Name: "pannier", Keys: []string{s.pem}, Issuer: "pannier", Audience: "consul"})
	w.consul.AuthMethod = "pannier"
	w.issuer = newIssuer(t, `{}`)
	return w, s
}

// loginRequest is request with a JWT, which is a secret.
func (w *world) loginRequest(t *testing.T, s *signer, claims map[string]any) identity.DeriveRequest {
	t.Helper()
	req := request(t)
	req.JWT = s.sign(t, claims)
	w.secrets = append(w.secrets, req.JWT)
	return req
}

// TestLogin follows a token from its login to its end. The issuer does not need its own token.
func TestLogin(t *testing.T) {
	t.Parallel()
	w, s := loginWorld(t)
	ctx := t.Context()
	req := w.loginRequest(t, s, claims(time.Now()))
	token, secret := w.derive(t, req)
	if token.Accessor == "" || token.Subject != req.Subject {
		t.Errorf("derived: got %+v", token)
	}
	if left := time.Until(token.ExpiresAt); left < 55*time.Minute || left > time.Hour {
		t.Errorf("the token ends in %v, want an hour", left)
	}
	there, _, err := w.Client(w.Management).ACL().TokenRead(token.Accessor, nil)
	check.NoError(t, err)
	if err := checkLogin(there, "web"); err != nil {
		t.Errorf("in Consul: the token %v", err)
	}
	if !strings.Contains(there.Description, req.ID) {
		t.Errorf("the description does not have the request's id: %s", there.Description)
	}
	if read, err := w.issuer.Read(ctx, w.consul, secret); err != nil || read != token {
		t.Errorf("read back: got %+v, %v, want %+v", read, err, token)
	}

	// Calls that need a token report that it is missing.
	_, err = w.issuer.List(ctx, w.consul, "c1")
	w.want(t, err, codes.FailedPrecondition, "set token_file")
	w.want(t, w.issuer.Revoke(ctx, w.consul, webToken(token.Accessor), ""), codes.FailedPrecondition,
		"the token stays valid until it expires")

	for range 2 {
		if err := w.issuer.Revoke(ctx, w.consul, webToken(token.Accessor), secret); err != nil {
			t.Errorf("revoke: %v", err)
		}
	}
	_, err = w.issuer.Read(ctx, w.consul, secret)
	w.want(t, err, codes.NotFound)
	if n := len(w.tokensOf(t, "web")); n != 0 {
		t.Errorf("%d tokens are left", n)
	}
}

// TestLoginLostAnswer drops the answer of a login. The token that Consul issued expires, and an issuer with a
// token can find and revoke it.
func TestLoginLostAnswer(t *testing.T) {
	t.Parallel()
	w, s := loginWorld(t)
	proxy := w.Proxy(t, 0)
	w.consul = proxy.Service(w.consul)
	req := w.loginRequest(t, s, claims(time.Now()))
	proxy.Add(consul.Match{Path: "/v1/acl/login", Times: 1}, consul.Cut())
	_, _, err := w.issuer.Derive(t.Context(), w.consul, req)
	w.want(t, err, codes.Unavailable)
	kept, secret := w.derive(t, req)

	check.NoError(t, w.issuer.Configure(t.Context(), []byte(`{"token_file": "`+w.tokenFile+`"}`)))
	list, err := w.issuer.List(t.Context(), w.consul, "c1")
	if err != nil || len(list) != 2 {
		t.Fatalf("listed: got %+v, %v, want two", list, err)
	}
	for _, token := range list {
		if token.ExpiresAt.IsZero() || token.Subject != req.Subject {
			t.Errorf("got %+v", token)
		}
		if token.Accessor != kept.Accessor {
			if err := w.issuer.Revoke(t.Context(), w.consul, webToken(token.Accessor), ""); err != nil {
				t.Error(err)
			}
		}
	}
	if read, err := w.issuer.Read(t.Context(), w.consul, secret); err != nil || read != kept {
		t.Errorf("got %+v, %v, want %+v", read, err, kept)
	}

	proxy.Add(consul.Match{Path: "/v1/acl/logout", Times: 1}, consul.Cut())
	w.want(t, w.issuer.Revoke(t.Context(), w.consul, webToken(kept.Accessor), secret), codes.Unavailable)
	if err := w.issuer.Revoke(t.Context(), w.consul, webToken(kept.Accessor), secret); err != nil {
		t.Error(err)
	}
	if n := len(w.tokensOf(t, "web")); n != 0 {
		t.Errorf("%d tokens are left", n)
	}
}

// TestJWT checks which JWTs are accepted. Consul allows the clocks to differ by a minute.
func TestJWT(t *testing.T) {
	t.Parallel()
	w, s := loginWorld(t)
	stranger := newSigner(t)
	with := func(now time.Time, key string, value any) map[string]any {
		c := claims(now)
		c[key] = value
		return c
	}
	now := time.Now()
	for name, c := range map[string]struct {
		signer *signer
		claims map[string]any
		code   codes.Code
		says   string
	}{
		"the host's clock is 50 s fast": {s, claims(now.Add(50 * time.Second)), codes.OK, ""},
		"the host's clock is 90 s slow": {s, claims(now.Add(-90 * time.Second)), codes.OK, ""},
		"the host's clock is 5 m fast":  {s, claims(now.Add(5 * time.Minute)), codes.Unauthenticated, "clocks"},
		"the host's clock is 5 m slow":  {s, claims(now.Add(-5 * time.Minute)), codes.Unauthenticated, "clocks"},
		"another key":                   {stranger, claims(now), codes.Unauthenticated, "keys"},
		"another audience":              {s, with(now, "aud", "vault"), codes.Unauthenticated, "audience"},
		"another issuer":                {s, with(now, "iss", "other"), codes.Unauthenticated, "issuer"},
		"another service": {
			s, with(now, "pannier_service", "db"), codes.FailedPrecondition,
			`identity of the service "web"`,
		},
		"no service": {s, with(now, "pannier_service", ""), codes.PermissionDenied, "binding rule"},
	} {
		t.Run(name, func(t *testing.T) {
			_, secret, err := w.issuer.Derive(t.Context(), w.consul, w.loginRequest(t, c.signer, c.claims))
			t.Log(err)
			w.want(t, err, c.code, c.says)
			if err == nil {
				if err := w.issuer.Revoke(t.Context(), w.consul, webToken(""), secret); err != nil {
					t.Error(err)
				}
			}
			if left := len(w.Tokens(t)); left != 3 { // the anonymous token, the management token and the plugin's
				t.Errorf("%d tokens exist, want 3", left)
			}
		})
	}
	garbage := request(t)
	garbage.JWT = "a.b.c"
	_, _, err := w.issuer.Derive(t.Context(), w.consul, garbage)
	w.want(t, err, codes.Unauthenticated)
	_, _, err = w.issuer.Derive(t.Context(), w.consul, request(t))
	w.want(t, err, codes.InvalidArgument, "no JWT")
}

// TestAuthMethod checks that unsuitable auth methods are refused.
func TestAuthMethod(t *testing.T) {
	t.Parallel()
	w, s := loginWorld(t)
	derive := func(t *testing.T, method string) error {
		t.Helper()
		c := w.consul
		c.AuthMethod = method
		_, _, err := w.issuer.Derive(t.Context(), c, w.loginRequest(t, s, claims(time.Now())))
		t.Log(err)
		if left := len(w.Tokens(t)); left != 3 {
			t.Errorf("%d tokens exist, want 3", left)
		}
		return err
	}
	w.want(t, derive(t, "absent"), codes.FailedPrecondition, "create the auth method")

	w.JWT(t, consul.JWTMethod{Name: "endless", Keys: []string{s.pem}, Audience: "consul", MaxTokenTTL: -1})
	w.want(t, derive(t, "endless"), codes.FailedPrecondition, "set the auth method's MaxTokenTTL")

	w.JWT(t, consul.JWTMethod{Name: "strong", Keys: []string{s.pem}, Audience: "consul"})
	rule := &api.ACLBindingRule{AuthMethod: "strong", BindType: api.BindingRuleBindTypePolicy, BindName: "pannier-sids"}
	if _, _, err := w.Client(w.Management).ACL().BindingRuleCreate(rule, nil); err != nil {
		t.Fatal(err)
	}
	w.want(t, derive(t, "strong"), codes.FailedPrecondition, "more than a service identity", "binding rules")
}

// TestJWKS lets Consul fetch the keys from a server that is sometimes unavailable and changes its key.
func TestJWKS(t *testing.T) {
	t.Parallel()
	w, old := loginWorld(t)
	var keys atomic.Value // nil while the server fails
	keys.Store(old.jwks(t))
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		text := keys.Load().([]byte)
		if text == nil {
			http.Error(rw, "later", http.StatusServiceUnavailable)
			return
		}
		_, _ = rw.Write(text)
	}))
	defer server.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	w.JWT(t, consul.JWTMethod{Name: "jwks", JWKSURL: server.URL, JWKSCA: ca, Audience: "consul"})
	w.consul.AuthMethod = "jwks"
	w.derive(t, w.loginRequest(t, old, claims(time.Now())))

	keys.Store([]byte(nil))
	fresh := newSigner(t)
	req := w.loginRequest(t, fresh, claims(time.Now()))
	_, _, err := w.issuer.Derive(t.Context(), w.consul, req)
	w.want(t, err, codes.Unavailable, "fetching keys")
	keys.Store(fresh.jwks(t))
	w.derive(t, req)
	_, _, err = w.issuer.Derive(t.Context(), w.consul, w.loginRequest(t, old, claims(time.Now())))
	w.want(t, err, codes.Unauthenticated)
}

// TestAuthMethodAdded revokes a token that was minted before the auth method was configured.
func TestAuthMethodAdded(t *testing.T) {
	t.Parallel()
	w, _ := loginWorld(t)
	with := w.consul
	w.consul.AuthMethod = ""
	check.NoError(t, w.issuer.Configure(t.Context(), []byte(`{"token_file": "`+w.tokenFile+`"}`)))
	req := request(t)
	_, secret := w.derive(t, req)
	if err := w.issuer.Revoke(t.Context(), with, webToken(req.ID), secret); err != nil {
		t.Error(err)
	}
	if n := len(w.tokensOf(t, "web")); n != 0 {
		t.Errorf("%d tokens are left", n)
	}
}
