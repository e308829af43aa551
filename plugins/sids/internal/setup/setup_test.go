package setup

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Consul with ACLs and TLS, and the input of a host that has done nothing yet.
type world struct {
	*consul.Cluster
	t   *testing.T
	in  Input
	acl *api.ACL
	key *ecdsa.PrivateKey // of the host
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	w := &world{Cluster: c, t: t, acl: c.Client(c.Management).ACL()}
	w.in = w.host("n1")
	return w
}

// host is the input of a host, which signs with a key of its own.
func (w *world) host(name string) Input {
	w.t.Helper()
	dir := w.t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check.NoError(w.t, err)
	w.key = key
	return Input{
		Mode: modeApply, Token: w.Management, Consul: w.Service(service.DefaultConsul, ""), Configured: true,
		Audience: "consul.io", Node: name, NodeTokenFile: filepath.Join(dir, "consul.token"),
		SidsTokenFile: filepath.Join(dir, "consul-acl.token"), Keys: []string{publicPEM(w.t, key)},
	}
}

func publicPEM(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	check.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// run runs it. The texts of the steps are its result, by object.
func (w *world) run(in Input) (steps map[string]string, r Report) {
	w.t.Helper()
	r = Run(w.t.Context(), in)
	steps = map[string]string{}
	for _, s := range r.Steps {
		steps[s.Object] = s.Text
	}
	text := check.Must(json.Marshal(r))(w.t)
	if strings.Contains(string(text), w.Management) {
		w.t.Errorf("the report has the token: %s", text)
	}
	return steps, r
}

// must is run without an error.
func (w *world) must(in Input) (map[string]string, Report) {
	w.t.Helper()
	steps, r := w.run(in)
	if r.Error != "" {
		w.t.Fatalf("%s\n%+v", r.Error, r.Steps)
	}
	return steps, r
}

// state is everything in Consul's ACLs, with the index of its last change, and the host's files.
func (w *world) state(in Input) string {
	w.t.Helper()
	policies, _, err := w.acl.PolicyList(nil)
	check.NoError(w.t, err)
	methods, _, err := w.acl.AuthMethodList(nil)
	check.NoError(w.t, err)
	rules, _, err := w.acl.BindingRuleList("", nil)
	check.NoError(w.t, err)
	files := map[string]string{}
	for _, path := range []string{in.NodeTokenFile, in.SidsTokenFile} {
		text, err := os.ReadFile(path)
		if err == nil {
			files[path] = string(text)
		}
	}
	return string(check.Must(json.MarshalIndent([]any{policies, methods, rules, w.Tokens(w.t), files}, "", " "))(w.t))
}

// login logs in as a workload's service, with a JWT that key has signed.
func (w *world) login(key *ecdsa.PrivateKey, namespace, name string) (*api.ACLToken, error) {
	w.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	check.NoError(w.t, err)
	now := time.Now()
	text, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: "pannier", Audience: jwt.Audience{"consul.io"}, IssuedAt: jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Minute)),
	}).Claims(map[string]any{
		"pannier_service": name, "pannier_namespace": namespace, "pannier_node": "n1",
	}).Serialize()
	check.NoError(w.t, err)
	token, _, err := w.Client("").ACL().Login(&api.ACLLoginParams{AuthMethod: "pannier", BearerToken: text}, nil)
	return token, err
}

func (w *world) mayLogIn(key *ecdsa.PrivateKey, namespace, name string, want bool) {
	w.t.Helper()
	token, err := w.login(key, namespace, name)
	switch {
	case want && err != nil:
		w.t.Errorf("%s in %s: %v", name, namespace, err)
	case !want && err == nil:
		w.t.Errorf("%s in %s got a token", name, namespace)
	case want && (len(token.ServiceIdentities) != 1 || token.ServiceIdentities[0].ServiceName != name || !token.Local ||
		token.ExpirationTime == nil || token.ExpirationTime.Sub(token.CreateTime) != 24*time.Hour):
		w.t.Errorf("%s in %s got %+v", name, namespace, token)
	}
}

// registers checks that the token in a file may register services, and that the file is its owner's alone.
func (w *world) registers(file string) {
	w.t.Helper()
	info, err := os.Stat(file)
	check.NoError(w.t, err)
	if info.Mode().Perm() != 0o600 {
		w.t.Errorf("%s is %v", file, info.Mode())
	}
	secret := strings.TrimSpace(string(check.Must(os.ReadFile(file))(w.t)))
	client := w.Client(secret)
	check.NoError(w.t, client.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web"}))
	if _, _, err := client.ACL().TokenList(nil); err == nil {
		w.t.Error("the node's token may read ACLs")
	}
}

// TestLoginSetUp makes everything, and then nothing more.
func TestLoginSetUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.state(w.in)
	for _, mode := range []string{modeDryRun, modeCheck} {
		in := w.in
		in.Mode = mode
		steps, r := w.must(in)
		if w.state(w.in) != before {
			t.Fatalf("%s has changed something", mode)
		}
		want := map[string]string{modeDryRun: "is missing: would be made", modeCheck: "is missing"}[mode]
		for _, object := range []string{
			"policy pannier-node", "token in " + in.NodeTokenFile, "auth method pannier",
			"binding rule: services of the namespace default",
		} {
			if steps[object] != want {
				t.Errorf("%s: %s: %q", mode, object, steps[object])
			}
		}
		last := r.Steps[len(r.Steps)-1]
		if asks := mode == modeCheck; r.Steps[0].Wrong != asks || last.Wrong != asks ||
			(last.Object == "the agent's configuration") != asks {
			t.Errorf("%s: %+v", mode, r.Steps)
		}
	}

	_, r := w.must(w.in)
	for _, s := range r.Steps {
		if s.Text != "is missing: made" || s.Wrong {
			t.Errorf("%+v", s)
		}
	}
	if want := "consul {\n  token_file      = \"" + w.in.NodeTokenFile + "\"\n  auth_method     = \"pannier\"\n}\n"; r.Config !=
		want {
		t.Errorf("got %s, want %s", r.Config, want)
	}
	w.registers(w.in.NodeTokenFile)
	w.mayLogIn(w.key, "default", "web", true)
	w.mayLogIn(w.key, "dev", "web", false)

	in := w.in
	in.Consul.TokenFile, in.Consul.AuthMethod = in.NodeTokenFile, "pannier"
	made := w.state(in)
	for _, mode := range []string{modeApply, modeCheck, modeDryRun} {
		in.Mode = mode
		_, r := w.must(in)
		for _, s := range r.Steps {
			if s.Text != "is there" || s.Wrong {
				t.Errorf("%s: %+v", mode, s)
			}
		}
		if r.Config != "" || len(r.Steps) != 4 {
			t.Errorf("%s: %+v", mode, r)
		}
	}
	if got := w.state(in); got != made {
		t.Errorf("the second run has changed something: %s\n%s", made, got)
	}
}

// TestMintedSetUp makes a second token, which may write ACLs.
func TestMintedSetUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.in.Minted = true
	_, r := w.must(w.in)
	if want := "plugin \"sids\" {\n  config {\n    token_file = \"" + w.in.SidsTokenFile + "\"\n  }\n}\n"; len(r.Steps) != 4 ||
		!strings.HasSuffix(r.Config, want) || strings.Contains(r.Config, "auth_method") {
		t.Errorf("%+v", r)
	}
	w.registers(w.in.NodeTokenFile)
	secret := strings.TrimSpace(string(check.Must(os.ReadFile(w.in.SidsTokenFile))(t)))
	if _, _, err := w.Client(secret).ACL().TokenCreate(&api.ACLToken{
		Local: true, ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}},
	}, nil); err != nil {
		t.Error(err)
	}
	made := w.state(w.in)
	// The configuration that was asked for says that tokens are minted.
	w.in.Minted, w.in.Consul.TokenFile = false, w.in.NodeTokenFile
	w.in.SidsConfig = []byte(`{"token_file": "` + w.in.SidsTokenFile + `"}`)
	if _, r := w.must(w.in); w.state(w.in) != made || r.Config != "" {
		t.Errorf("the second run has changed something: %s\n%+v", w.state(w.in), r)
	}
}

// TestMend changes each object that was made, and lets another run mend it.
func TestMend(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.in.Services = map[string][]string{"default": {"web", "shop-*"}, "dev": {"*"}}
	w.must(w.in)
	w.mayLogIn(w.key, "default", "shop-1", true)
	w.mayLogIn(w.key, "default", "webx", false)
	w.mayLogIn(w.key, "dev", "payments", true)
	made := w.state(w.in)

	policy, _, err := w.acl.PolicyReadByName(nodePolicy, nil)
	check.NoError(t, err)
	policy.Rules = `service_prefix "" { policy = "read" }`
	_, _, err = w.acl.PolicyUpdate(policy, nil)
	check.NoError(t, err)
	method, _, err := w.acl.AuthMethodRead("pannier", nil)
	check.NoError(t, err)
	method.Config["BoundIssuer"], method.MaxTokenTTL = "another", time.Hour
	method.Config["ClockSkewLeeway"] = 30 * time.Second // an operator's own
	_, _, err = w.acl.AuthMethodUpdate(method, nil)
	check.NoError(t, err)
	rules, _, err := w.acl.BindingRuleList("pannier", nil)
	check.NoError(t, err)
	for _, r := range rules {
		r.Selector = ""
		_, _, err = w.acl.BindingRuleUpdate(r, nil)
		check.NoError(t, err)
	}
	check.NoError(t, os.Remove(w.in.NodeTokenFile))

	in := w.in
	in.Mode, in.Consul.TokenFile, in.Consul.AuthMethod = modeCheck, in.NodeTokenFile, "pannier"
	steps, r := w.must(in)
	for object, want := range map[string]string{
		"policy pannier-node": "differs in its rules", "auth method pannier": "differs in BoundIssuer, MaxTokenTTL",
		"token in " + in.NodeTokenFile:                    "is missing",
		"binding rule: services of the namespace default": "differs in its selector",
		"binding rule: services of the namespace dev":     "differs in its selector",
	} {
		if steps[object] != want {
			t.Errorf("%s: %q, want %q", object, steps[object], want)
		}
	}
	if len(r.Steps) != 5 {
		t.Errorf("%+v", r.Steps)
	}
	w.must(w.in)
	steps, _ = w.must(in)
	for object, text := range steps {
		if text != "is there" {
			t.Errorf("%s: %s", object, text)
		}
	}
	w.registers(w.in.NodeTokenFile)
	w.mayLogIn(w.key, "default", "shop-1", true)
	w.mayLogIn(w.key, "default", "payments", false)
	method, _, err = w.acl.AuthMethodRead("pannier", nil)
	check.NoError(t, err)
	if method.Config["ClockSkewLeeway"] == nil {
		t.Errorf("the operator's own is gone: %v", method.Config)
	}
	// The token of the first run is in the file again.
	if strings.Count(w.state(w.in), `"pannier on n1 `) != strings.Count(made, `"pannier on n1 `) {
		t.Error("there is another token")
	}

	// A token that Consul does not know is replaced; rules of namespaces that are not named any more are removed.
	check.NoError(t, os.WriteFile(w.in.NodeTokenFile, []byte("7d7a4a3e-6a52-4e3b-9a55-0a3f0a4c8f11\n"), 0o600))
	w.in.Services = map[string][]string{"default": {"web"}}
	steps, _ = w.must(w.in)
	if steps["token in "+w.in.NodeTokenFile] != "is unknown to Consul: made" ||
		steps["binding rule: services of the namespace dev"] != "is not wanted: removed" {
		t.Errorf("%v", steps)
	}
	w.registers(w.in.NodeTokenFile)
	w.mayLogIn(w.key, "dev", "payments", false)
}

// TestSecondHost adds its key to the auth method. Without -services it widens no rule.
func TestSecondHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.key
	w.in.Services = map[string][]string{"default": {"web"}}
	w.must(w.in)
	steps, _ := w.must(w.host("n2"))
	if steps["auth method pannier"] != "differs in JWTValidationPubKeys: updated" {
		t.Errorf("%v", steps)
	}
	for _, key := range []*ecdsa.PrivateKey{first, w.key} {
		w.mayLogIn(key, "default", "web", true)
		w.mayLogIn(key, "default", "payments", false)
	}
	in := w.in
	in.JWKSURL = "http://127.0.0.1:1/jwks.json"
	if _, r := w.run(in); !strings.Contains(r.Error, "the keys of 2 hosts") {
		t.Errorf("a URL instead of the keys: %+v", r)
	}
}

// TestKeysAreReplaced adds a host's next key beside its present one, and then removes the one that was replaced. What
// other hosts have added stays.
func TestKeysAreReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	others := w.key
	w.must(w.in)
	in := w.host("n2")
	old, present := w.key, in.Keys[0]
	w.must(in)
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check.NoError(t, err)
	in.Keys = []string{present, publicPEM(t, next)}
	w.must(in)
	for _, key := range []*ecdsa.PrivateKey{others, old, next} {
		w.mayLogIn(key, "default", "web", true)
	}
	in.Keys, in.Retired = in.Keys[1:], in.Keys[:1]
	for _, c := range []struct{ mode, want string }{
		{modeCheck, "differs in JWTValidationPubKeys"},
		{modeApply, "differs in JWTValidationPubKeys: updated"},
		{modeApply, "is there"},
	} {
		in.Mode = c.mode
		if steps, _ := w.must(in); steps["auth method pannier"] != c.want {
			t.Errorf("%s: %v", c.mode, steps)
		}
	}
	w.mayLogIn(old, "default", "web", false)
	w.mayLogIn(others, "default", "web", true)
	w.mayLogIn(next, "default", "web", true)
}

// TestNodeRights: the policy is for all hosts, and what one of them needs stays.
func TestNodeRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entries := func(kind string) error {
		secret, err := os.ReadFile(w.in.NodeTokenFile)
		check.NoError(t, err)
		entry := map[string]any{"Kind": kind, "Name": "db", "Sources": []map[string]string{{"Name": "web", "Action": "allow"}}}
		if kind == api.TerminatingGateway {
			entry = map[string]any{"Kind": kind, "Name": "db", "Services": []map[string]string{{"Name": "web"}}}
		}
		_, err = w.Client(strings.TrimSpace(string(secret))).Raw().Write("/v1/config", entry, nil, nil)
		return err
	}
	w.must(w.in)
	if entries(api.ServiceIntentions) == nil || entries(api.TerminatingGateway) == nil {
		t.Error("the token may write what nobody asked for")
	}
	for _, right := range []func(in *Input){
		func(in *Input) { in.Gateways = true }, func(in *Input) { in.Intentions = true }, func(*Input) {},
	} {
		other := w.host("n2")
		right(&other)
		w.must(other)
	}
	check.NoError(t, entries(api.ServiceIntentions))
	check.NoError(t, entries(api.TerminatingGateway))
	if steps, _ := w.must(w.in); steps["policy "+nodePolicy] != "is there" {
		t.Errorf("steps: %v", steps)
	}
}

// TestForeign refuses objects of others, and then changes nothing.
func TestForeign(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(w *world) error{
		"policy pannier-node": func(w *world) error {
			_, _, err := w.acl.PolicyCreate(&api.ACLPolicy{Name: nodePolicy, Description: "mine", Rules: nodeRights{}.rules()}, nil)
			return err
		},
		"auth method pannier": func(w *world) error {
			_, _, err := w.acl.AuthMethodCreate(&api.ACLAuthMethod{Name: "pannier", Type: "jwt", Config: map[string]any{
				"JWTValidationPubKeys": w.in.Keys,
			}}, nil)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			check.NoError(t, prepare(w))
			before := w.state(w.in)
			for _, mode := range []string{modeApply, modeDryRun, modeCheck} {
				w.in.Mode = mode
				if _, r := w.run(w.in); !strings.Contains(r.Error, what+" exists and was not made by this command") {
					t.Errorf("%s: %+v", mode, r)
				}
				if got := w.state(w.in); got != before {
					t.Errorf("%s has changed something: %s\n%s", mode, got, before)
				}
			}
			w.in.Mode, w.in.Destroy = modeApply, true
			if steps, _ := w.must(w.in); steps[what] != "was not made by this command: left" {
				t.Errorf("%v", steps)
			}
			if got := w.state(w.in); got != before {
				t.Errorf("something was changed: %s\n%s", before, got)
			}
		})
	}
}

// TestDestroy removes what the command has made, and nothing else.
func TestDestroy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Policy(t, "pannier-other", `service_prefix "" { policy = "read" }`)
	w.Token(t, "pannier-other")
	w.JWT(t, consul.JWTMethod{Name: "other", Keys: w.in.Keys})
	before := w.state(w.in)
	w.must(w.in)
	minted := w.in
	minted.Minted = true
	w.must(minted)
	made := w.state(w.in)

	dry := w.in
	dry.Destroy, dry.Mode = true, modeDryRun
	steps, _ := w.must(dry)
	if w.state(w.in) != made || steps["policy pannier-sids"] != "is there: would be removed" {
		t.Errorf("a dry run: %v", steps)
	}

	dry.Mode = modeApply
	rule := &api.ACLBindingRule{AuthMethod: "pannier", BindType: "service", BindName: "x", Description: "mine"}
	rule, _, err := w.acl.BindingRuleCreate(rule, nil)
	check.NoError(t, err)
	if _, r := w.run(dry); !strings.Contains(r.Error, rule.ID) {
		t.Errorf("with a rule of another: %+v", r)
	}
	_, err = w.acl.BindingRuleDelete(rule.ID, nil)
	check.NoError(t, err)
	if w.state(w.in) != made {
		t.Error("it has changed something before it refused")
	}

	w.must(dry)
	if got := w.state(w.in); got != before {
		t.Errorf("before: %s\nafter: %s", before, got)
	}
	if _, r := w.must(dry); len(r.Steps) != 0 {
		t.Errorf("again: %+v", r.Steps)
	}
}

// TestKeysAtURL reports whether Consul can fetch the keys.
func TestKeysAtURL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	served := check.Must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: w.key.Public(), Algorithm: "ES256", Use: "sig", KeyID: "k"},
	}}))(t)
	keys := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(served)
	}))
	t.Cleanup(keys.Close)
	w.in.Keys = nil
	if _, r := w.run(w.in); !strings.Contains(r.Error, "the agent's public keys are needed") {
		t.Errorf("without keys: %+v", r)
	}
	w.in.JWKSURL = keys.URL + "/jwks.json"
	object := "keys at " + w.in.JWKSURL
	w.in.JWKSCA = publicCA(t)
	if _, r := w.run(w.in); !strings.Contains(r.Error, "certificate signed by unknown authority") ||
		!strings.Contains(r.Error, "-jwks-ca must have the CA") {
		t.Errorf("with another CA: %+v", r)
	}
	w.in.JWKSCA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: keys.Certificate().Raw}))
	steps, r := w.must(w.in)
	if steps[object] != "are fetched by Consul" || r.Steps[len(r.Steps)-1].Wrong {
		t.Errorf("with the right one: %+v", r.Steps)
	}
	w.mayLogIn(w.key, "default", "web", true)

	// Another host of the cluster leaves the URL, and a check says when nothing answers there any more.
	w.in.JWKSURL, w.in.JWKSCA = "", ""
	if steps, _ := w.must(w.in); steps["auth method pannier"] != "is there" || steps[object] != "are fetched by Consul" {
		t.Errorf("%v", steps)
	}
	// A host of its own has another key: its URL would end the logins of the others.
	in := w.in
	in.JWKSURL = keys.URL + "/other.json"
	in.JWKSCA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: keys.Certificate().Raw}))
	for _, mode := range []string{modeApply, modeCheck, modeDryRun} {
		in.Mode = mode
		if _, r := w.run(in); !strings.Contains(r.Error, keys.URL) || !strings.Contains(r.Error, "-force") {
			t.Errorf("%s of another URL: %+v", mode, r)
		}
	}
	w.mayLogIn(w.key, "default", "web", true)
	in.Mode, in.Force = modeApply, true
	if steps, _ := w.must(in); steps["auth method pannier"] != "differs in JWKSURL: updated" {
		t.Errorf("with -force: %v", steps)
	}
	keys.Close()
	w.in.Mode = modeCheck
	if _, r := w.must(w.in); !r.Steps[len(r.Steps)-1].Wrong {
		t.Errorf("without a server: %+v", r.Steps)
	}
}

// publicCA is the certificate of another server.
func publicCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check.NoError(t, err)
	raw := check.Must(x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true},
		&x509.Certificate{SerialNumber: big.NewInt(1)}, key.Public(), key))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
}
