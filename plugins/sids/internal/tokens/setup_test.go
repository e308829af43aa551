package tokens

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// world is a Consul with ACLs and TLS, and an issuer whose token has exactly the documented permissions.
type world struct {
	*consul.Cluster
	issuer *Issuer
	consul service.Consul
	// tokenFile has the issuer's token.
	tokenFile string
	// secrets must not be in any error.
	secrets []string
}

func newWorld(t *testing.T, servers int) *world {
	t.Helper()
	cluster := consul.Start(t, consul.Options{Servers: servers, ACL: true, TLS: true})
	cluster.Policy(t, "pannier-sids", `acl = "write"`)
	secret := cluster.Token(t, "pannier-sids")
	w := &world{
		Cluster: cluster, consul: cluster.Service(service.DefaultConsul, ""),
		tokenFile: cluster.TokenFile(t, secret), secrets: []string{secret, cluster.Management},
	}
	w.issuer = newIssuer(t, fmt.Sprintf(`{"token_file": %q}`, w.tokenFile))
	return w
}

func newIssuer(t *testing.T, config string) *Issuer {
	t.Helper()
	i := New()
	t.Cleanup(func() { _ = i.Close() })
	check.NoError(t, i.Configure(t.Context(), []byte(config)))
	return i
}

// derive requests a token, which must succeed.
func (w *world) derive(t *testing.T, req identity.DeriveRequest) (identity.Token, string) {
	t.Helper()
	token, secret, err := w.issuer.Derive(t.Context(), w.consul, req)
	check.NoError(t, err)
	w.secrets = append(w.secrets, secret)
	return token, secret
}

// request returns a request for the web service of the workload default/web-1.
func request(t *testing.T) identity.DeriveRequest {
	t.Helper()
	return identity.DeriveRequest{ID: newID(t), Subject: webSubject}
}

// webToken is the token of request's subject with an accessor.
func webToken(accessor string) identity.Token {
	return identity.Token{Accessor: accessor, Subject: webSubject}
}

var webSubject = identity.Subject{Cluster: "c1", Node: "n1", Namespace: "default", Workload: "web-1", Service: "web"}

func newID(t *testing.T) string {
	t.Helper()
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// tokensOf returns the tokens in Consul whose description names a service of ours.
func (w *world) tokensOf(t *testing.T, service string) []*api.ACLTokenListEntry {
	t.Helper()
	var out []*api.ACLTokenListEntry
	for _, e := range w.Tokens(t) {
		if subjectOf(e.Description).Service == service {
			out = append(out, e)
		}
	}
	return out
}

// want checks an error: its code, texts that an operator needs, and that it contains no secret.
func (w *world) want(t *testing.T, err error, code codes.Code, texts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v: %v, want %v", status.Code(err), err, code)
		return
	}
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("got %v, want it to contain %q", err, text)
		}
	}
	for _, secret := range w.secrets {
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("a secret is in the error: %v", err)
		}
	}
}

// signer signs JWTs like a host.
type signer struct {
	key *ecdsa.PrivateKey
	pem string // the public key
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	check.NoError(t, err)
	return &signer{key: key, pem: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}
}

// jwks returns the public key as JSON Web Key Set.
func (s *signer) jwks(t *testing.T) []byte {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
		Key: &s.key.PublicKey, KeyID: "k1",
		Algorithm: "ES256", Use: "sig",
	}}})
	check.NoError(t, err)
	return text
}

// claims returns the claims of a JWT for the service web, signed at this time.
func claims(now time.Time) map[string]any {
	return map[string]any{
		"iss": "pannier", "aud": "consul", "pannier_service": "web",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	}
}

func (s *signer) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", "k1")
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: s.key}, options)
	check.NoError(t, err)
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	check.NoError(t, err)
	return text
}

func write(t *testing.T, path, text string) {
	t.Helper()
	check.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
