package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
	"github.com/pannier/pannier/test/lib/testbin"
)

var (
	_ servicesteps.Tokens = (*Authority)(nil)
	_ Ledger              = (*cluster.Node)(nil)
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// patience bounds every wait.
const patience = 30 * time.Second

// world is an authority on a real ledger.
type world struct {
	*Authority
	t      *testing.T
	dir    string
	ledger *clustertest.Server
	log    *bytes.Buffer
}

// newWorld makes an authority with an identity plugin or a fake one.
func newWorld(t *testing.T,
	ask func(ctx context.Context, consul string, fn func(context.Context, identity.Identity) error) error,
	consuls ...service.Consul,
) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), log: &bytes.Buffer{}}
	w.ledger = clustertest.StartWith(t, cluster.Config{Dir: filepath.Join(w.dir, "cluster")})
	cfg := Config{
		Consuls: map[string]service.Consul{}, Identity: ask, Events: events.New(100),
		Log: hclog.New(&hclog.LoggerOptions{Output: w.log, Level: hclog.Trace}),
	}
	for _, c := range consuls {
		cfg.Consuls[c.Name] = c
	}
	w.open(cfg)
	return w
}

// open makes the authority again, like a restart of the agent.
func (w *world) open(cfg Config) {
	w.t.Helper()
	sealer, err := secrets.Open(filepath.Join(w.dir, "secrets.key"))
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.Ledger, cfg.Sealer = w.ledger, sealer
	w.Authority = New(cfg)
}

func ref(id string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: "default", ID: id} }

// nextID returns an id that no other test of this process uses, because they share a Consul.
func (w *world) nextID() string {
	idMu.Lock()
	defer idMu.Unlock()
	lastID++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", lastID)
}

var (
	idMu   sync.Mutex
	lastID int
)

// start runs a workload on a node with a token for each service of one Consul.
func (w *world) start(id, node, consul string, services ...string) (tokens []claim.Token) {
	w.t.Helper()
	for _, s := range services {
		tokens = append(tokens, claim.Token{ID: w.nextID(), Workload: ref(id), Node: node, Service: s, Consul: consul})
	}
	if _, err := cluster.Apply(w.t.Context(), w.ledger,
		command.Start(claim.Run{Ref: ref(id), Node: node}, nil, tokens...)); err != nil {
		w.t.Fatal(err)
	}
	return tokens
}

func (w *world) stop(id string) {
	w.t.Helper()
	if _, err := cluster.Apply(w.t.Context(), w.ledger, command.End(claim.Run{Ref: ref(id)})); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) derive(t claim.Token) (derived claim.Token, secret string) {
	w.t.Helper()
	derived, secret, err := w.Derive(w.within(), t)
	if err != nil {
		w.t.Fatalf("derive: %v", err)
	}
	return derived, secret
}

func (w *world) sweep(dryRun bool) Report {
	w.t.Helper()
	report, err := w.Sweep(w.within(), dryRun)
	if err != nil {
		w.t.Fatalf("sweep: %v", err)
	}
	return report
}

// noted returns the ids of the ledger's tokens.
func (w *world) noted() (ids []string) {
	w.t.Helper()
	err := w.ledger.Read(w.t.Context(), func(tx *state.ReadTx) error {
		all, err := tx.Tokens("")
		for _, t := range all {
			ids = append(ids, t.ID)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

func (w *world) token(id string) (t claim.Token) {
	w.t.Helper()
	err := w.ledger.Read(w.t.Context(), func(tx *state.ReadTx) (err error) {
		t, err = tx.Token(id)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// within returns a context that ends with the test's patience.
func (w *world) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.t.Cleanup(cancel)
	return ctx
}

// swept returns the ids of a report's tokens that were revoked, and of the others with the reason or the error.
func swept(r Report) (revoked []string, left map[string]string) {
	left = map[string]string{}
	for _, s := range r.Swept {
		switch {
		case s.Revoked:
			revoked = append(revoked, s.Token.ID)
		case s.Err != nil:
			left[s.Token.ID] = s.Err.Error()
		default:
			left[s.Token.ID] = s.Reason
		}
	}
	slices.Sort(revoked)
	return revoked, left
}

// sids runs the real identity plugin, without a token of its own.
func sids(t *testing.T) *catalog.Catalog {
	t.Helper()
	dir := t.TempDir()
	cfg := supervisor.Config{
		PluginDir: filepath.Join(dir, "plugins"), DataDir: filepath.Join(dir, "data"), StopPlugins: true,
		Restart: supervisor.Restart{Min: 10 * time.Millisecond},
		Plugins: []supervisor.Plugin{{
			Name: "sids", Config: json.RawMessage("{}"), Env: []string{"GORACE=atexit_sleep_ms=0"},
		}},
	}
	check.NoError(t, os.MkdirAll(cfg.PluginDir, 0o755))
	program, err := os.ReadFile(testbin.Build(t, "plugins/sids"))
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(filepath.Join(cfg.PluginDir, "sids"), program, 0o755))
	s := supervisor.New(cfg)
	check.NoError(t, s.Open(t.Context()))
	t.Cleanup(func() { s.Close() })
	return catalog.New(s)
}

// fake replaces a plugin and its Consuls, so that a test can make them fail or stall. It issues tokens by login if
// the Consul has an auth method.
type fake struct {
	mu     sync.Mutex
	tokens map[string]map[string]identity.Token // by Consul and accessor
	calls  []string
	fail   map[string]error                 // by call, such as "derive" or "list other"
	before map[string]func(context.Context) // by call
	after  map[string]func(context.Context) // by call
	jwts   []string
	// privileged is true if the plugin has a token that may revoke without the secret.
	privileged bool
}

func newFake() *fake {
	return &fake{
		tokens: map[string]map[string]identity.Token{}, fail: map[string]error{},
		before: map[string]func(context.Context){}, after: map[string]func(context.Context){},
	}
}

func (f *fake) ask(ctx context.Context, _ string, fn func(context.Context, identity.Identity) error) error {
	return fn(ctx, f)
}

// call applies the fault that was set for a call.
func (f *fake) call(ctx context.Context, name string, c service.Consul,
	do func(has map[string]identity.Token) error,
) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	before, after := f.before[name], f.after[name]
	f.mu.Unlock()
	if before != nil {
		before(ctx)
	}
	f.mu.Lock()
	err := f.fail[name]
	if err == nil {
		err = f.fail[name+" "+c.Name]
	}
	if f.tokens[c.Name] == nil {
		f.tokens[c.Name] = map[string]identity.Token{}
	}
	if err == nil {
		err = do(f.tokens[c.Name])
	}
	f.mu.Unlock()
	if after != nil {
		after(ctx)
	}
	return err
}

func (f *fake) Derive(ctx context.Context, c service.Consul, req identity.DeriveRequest) (token identity.Token,
	secret string, err error,
) {
	err = f.call(ctx, "derive", c, func(has map[string]identity.Token) error {
		token = identity.Token{Accessor: req.ID, Subject: req.Subject, CreatedAt: time.Now()}
		if c.AuthMethod != "" {
			token.Accessor, token.ExpiresAt = fmt.Sprintf("99999999-0000-4000-8000-%012d",
				len(f.jwts)), time.Now().Add(time.Hour)
			f.jwts = append(f.jwts, req.JWT)
		}
		has[token.Accessor] = token
		secret = "secret-of-" + token.Accessor
		return nil
	})
	return token, secret, err
}

func (f *fake) Read(ctx context.Context, c service.Consul, secret string) (token identity.Token, err error) {
	err = f.call(ctx, "read", c, func(has map[string]identity.Token) error {
		var there bool
		if token, there = has[strings.TrimPrefix(secret, "secret-of-")]; !there {
			return status.Error(codes.NotFound, "no such token")
		}
		return nil
	})
	return token, err
}

func (f *fake) Revoke(ctx context.Context, c service.Consul, t identity.Token, secret string) error {
	return f.call(ctx, "revoke", c, func(has map[string]identity.Token) error {
		if c.AuthMethod != "" && secret == "" && !f.privileged {
			return status.Error(codes.FailedPrecondition, "the plugin has no token for it")
		}
		if made, there := has[t.Accessor]; there && made.Subject != t.Subject {
			return status.Error(codes.AlreadyExists, "the token is for another subject")
		}
		delete(has, t.Accessor)
		return nil
	})
}

func (f *fake) List(ctx context.Context, c service.Consul, cluster string) (all []identity.Token, err error) {
	err = f.call(ctx, "list", c, func(has map[string]identity.Token) error {
		all = slices.Collect(maps.Values(has)) // of all clusters: the authority may not rely on it
		return nil
	})
	return all, err
}

// has returns the accessors of the tokens in a Consul.
func (f *fake) has(consul string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.tokens[consul]))
}

func (f *fake) count(call string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c == call {
			n++
		}
	}
	return n
}
