package consul

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// Policy makes an ACL policy with these rules.
func (c *Cluster) Policy(t testing.TB, name, rules string) {
	t.Helper()
	if _, _, err := c.Client(c.Management).ACL().PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
		t.Fatalf("make the policy %q: %v", name, err)
	}
}

// Token makes a token with these policies and returns its secret.
func (c *Cluster) Token(t testing.TB, policies ...string) (secret string) {
	t.Helper()
	token := &api.ACLToken{Description: t.Name()}
	for _, p := range policies {
		token.Policies = append(token.Policies, &api.ACLLink{Name: p})
	}
	made, _, err := c.Client(c.Management).ACL().TokenCreate(token, nil)
	if err != nil {
		t.Fatalf("make a token: %v", err)
	}
	return made.SecretID
}

// TokenFile writes a secret to a file that only its owner can read.
func (c *Cluster) TokenFile(t testing.TB, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Tokens lists all tokens.
func (c *Cluster) Tokens(t testing.TB) []*api.ACLTokenListEntry {
	t.Helper()
	tokens, _, err := c.Client(c.Management).ACL().TokenList(nil)
	if err != nil {
		t.Fatalf("list the tokens: %v", err)
	}
	return tokens
}

// Services lists the services of the first server's agent by id.
func (c *Cluster) Services(t testing.TB) map[string]*api.AgentService {
	t.Helper()
	services, err := c.Client(c.Management).Agent().Services()
	if err != nil {
		t.Fatalf("list the services: %v", err)
	}
	return services
}

// JWTMethod is an auth method that accepts JWTs.
type JWTMethod struct {
	Name string
	// The keys are at JWKSURL, whose CA certificate is JWKSCA in PEM; or Keys has public keys in PEM.
	JWKSURL, JWKSCA string
	Keys            []string
	// Issuer and Audience that a JWT must have; empty: any.
	Issuer, Audience string
	// MaxTokenTTL limits the life of its tokens; 0: one hour; negative: no limit. Consul's minimum is a minute.
	MaxTokenTTL time.Duration
	// Config is added to the method's configuration.
	Config map[string]any
}

// JWT makes the auth method, and the binding rule that gives a JWT's bearer the identity of the service in its
// claim pannier_service. The JWT is signed with ES256.
func (c *Cluster) JWT(t testing.TB, m JWTMethod) {
	t.Helper()
	config := map[string]any{
		"JWTSupportedAlgs": []string{"ES256"},
		"ClaimMappings":    map[string]string{"pannier_service": "pannier_service"},
	}
	if m.JWKSURL != "" {
		config["JWKSURL"], config["JWKSCACert"] = m.JWKSURL, m.JWKSCA
	} else {
		config["JWTValidationPubKeys"] = m.Keys
	}
	if m.Issuer != "" {
		config["BoundIssuer"] = m.Issuer
	}
	if m.Audience != "" {
		config["BoundAudiences"] = []string{m.Audience}
	}
	for key, value := range m.Config {
		config[key] = value
	}
	method := &api.ACLAuthMethod{Name: m.Name, Type: "jwt", TokenLocality: "local", Config: config}
	switch {
	case m.MaxTokenTTL == 0:
		method.MaxTokenTTL = time.Hour
	case m.MaxTokenTTL > 0:
		method.MaxTokenTTL = m.MaxTokenTTL
	}
	acl := c.Client(c.Management).ACL()
	if _, _, err := acl.AuthMethodCreate(method, nil); err != nil {
		t.Fatalf("make the auth method %q: %v", m.Name, err)
	}
	rule := &api.ACLBindingRule{
		AuthMethod: m.Name, BindType: api.BindingRuleBindTypeService,
		BindName: "${value.pannier_service}",
	}
	if _, _, err := acl.BindingRuleCreate(rule, nil); err != nil {
		t.Fatalf("make the binding rule of %q: %v", m.Name, err)
	}
}

func newUUID(t testing.TB) string {
	t.Helper()
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
