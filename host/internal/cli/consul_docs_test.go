package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

func consulPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(docs, "consul.md"))
	check.NoError(t, err)
	return string(page)
}

// consulShell runs the commands of docs/consul.md that follow a given comment against a real Consul, with a
// temporary directory instead of /etc/pannier.
type consulShell struct {
	t    *testing.T
	c    *consul.Cluster
	dir  string
	keys string // directory of the JWKS
}

func newConsulShell(t *testing.T) *consulShell {
	t.Helper()
	s := &consulShell{t: t, c: consul.Start(t, consul.Options{ACL: true}), dir: t.TempDir()}
	check.NoError(t, os.Symlink(consul.Binary(t), filepath.Join(s.dir, "consul")))
	return s
}

func (s *consulShell) run(name string) {
	s.t.Helper()
	_, after, found := strings.Cut(consulPage(s.t), "<!-- run: "+name+" -->\n```sh\n")
	script, _, ended := strings.Cut(after, "```\n")
	if !found || !ended {
		s.t.Fatalf("docs/consul.md has no lines to run for %q", name)
	}
	script = strings.NewReplacer("/etc/pannier", s.dir, "http://192.0.2.10:7420", s.keys).Replace(script)
	cmd := exec.Command("sh", "-euc", script)
	cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"),
		"CONSUL_HTTP_ADDR="+s.c.Service("default", "").Address, "CONSUL_HTTP_TOKEN="+s.c.Management)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("docs/consul.md, %q: %v\n%s", name, err, out)
	}
}

// token returns a client that uses the token in a file, and what Consul says about the token.
func (s *consulShell) token(file string) (*api.Client, *api.ACLToken) {
	s.t.Helper()
	path := filepath.Join(s.dir, file)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		s.t.Fatalf("%s: %v, %v", file, info, err)
	}
	raw, err := os.ReadFile(path)
	check.NoError(s.t, err)
	client := s.c.Client(strings.TrimSpace(string(raw)))
	token, _, err := client.ACL().TokenReadSelf(nil)
	if err != nil {
		s.t.Fatalf("%s holds no token: %v", file, err)
	}
	return client, token
}

func TestDocumentedTokensOfTheHost(t *testing.T) {
	s := newConsulShell(t)
	s.run("node-token")
	s.run("mint-token")
	node, _ := s.token("consul.token")
	if err := node.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web"}); err != nil {
		t.Errorf("the node's token: %v", err)
	}
	if _, _, err := node.ACL().TokenCreate(&api.ACLToken{}, nil); err == nil {
		t.Error("the node's token can create tokens")
	}
	mint, _ := s.token("consul-acl.token")
	if _, _, err := mint.ACL().TokenCreate(&api.ACLToken{
		Local:             true,
		ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}},
	}, nil); err != nil {
		t.Errorf("the token for minting: %v", err)
	}
}

// The auth method accepts a JWT signed with the served key, and returns a token with the service's identity.
func TestDocumentedAuthMethod(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check.NoError(t, err)
	public := jose.JSONWebKey{Key: private.Public(), Algorithm: string(jose.ES256), Use: "sig", KeyID: "k"}
	served, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}})
	check.NoError(t, err)
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(served) }))
	t.Cleanup(keys.Close)
	s := newConsulShell(t)
	s.keys = keys.URL
	s.run("login")

	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: "k"}},
		nil)
	check.NoError(t, err)
	now := time.Now()
	bearer := func(namespace, service string) string {
		text, err := jwt.Signed(signer).Claims(jwt.Claims{
			Issuer: "pannier", Subject: namespace + "/w/" + service, Audience: jwt.Audience{"consul.io"},
			IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(
				now.Add(5 * time.Minute)),
		}).Claims(map[string]any{
			"pannier_service": service, "pannier_namespace": namespace, "pannier_node": "a",
		}).Serialize()
		check.NoError(t, err)
		return text
	}
	for namespace, service := range map[string]string{"default": "payments", "dev": "web"} {
		if _, _, err := s.c.Client("").ACL().Login(
			&api.ACLLoginParams{AuthMethod: "pannier", BearerToken: bearer(namespace, service)}, nil); err == nil {
			t.Errorf("namespace %q got the token of %q", namespace, service)
		}
	}
	token, _, err := s.c.Client("").ACL().Login(
		&api.ACLLoginParams{AuthMethod: "pannier", BearerToken: bearer("default", "web")}, nil)
	check.NoError(t, err)
	if len(token.ServiceIdentities) != 1 || token.ServiceIdentities[0].ServiceName != "web" || !token.Local ||
		token.ExpirationTime == nil || token.ExpirationTime.Sub(token.CreateTime) != 24*time.Hour {
		t.Errorf("got %+v", token)
	}
}
