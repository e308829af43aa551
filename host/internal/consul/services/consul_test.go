package services

import (
	"context"
	"encoding/json"
	"fmt"
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

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testbin"
)

// nodePolicy is the policy that consul-services needs.
const nodePolicy = `
service_prefix "" { policy = "write" }
node_prefix    "" { policy = "read" }
agent_prefix   "" { policy = "read" }
`

// start runs the real plugin in a supervised process.
func start(t *testing.T) *supervisor.Supervisor {
	t.Helper()
	dir := t.TempDir()
	cfg := supervisor.Config{
		PluginDir: filepath.Join(dir, "plugins"), DataDir: filepath.Join(dir, "data"), StopPlugins: true,
		Restart: supervisor.Restart{Min: 10 * time.Millisecond},
		Plugins: []supervisor.Plugin{{
			Name: "consul-services", Config: json.RawMessage("{}"),
			Env: []string{"GORACE=atexit_sleep_ms=0"},
		}},
	}
	check.NoError(t, os.MkdirAll(cfg.PluginDir, 0o755))
	program, err := os.ReadFile(testbin.Build(t, "plugins/consul-services"))
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(filepath.Join(cfg.PluginDir, "consul-services"), program, 0o755))
	s := supervisor.New(cfg)
	check.NoError(t, s.Open(t.Context()))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestRealConsul keeps services in sync with a real Consul, through the real plugin.
func TestRealConsul(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true})
	c.Policy(t, "node", nodePolicy)
	proxy := c.Proxy(t, 0)
	reached := proxy.Service(c.Service("default", c.TokenFile(t, c.Token(t, "node"))))
	plugins := start(t)
	there := func() (ids []string) {
		for id := range c.Services(t) {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		return ids
	}
	seen := &spy{}
	life := func() (*Registrar, *world) {
		r, w := build(nil, nil)
		r.cfg.Consuls = map[string]service.Consul{"default": reached}
		r.cfg.Registration = func(ctx context.Context, _ string,
			fn func(ctx context.Context, c registration.Registration) error,
		) error {
			return catalog.New(plugins).DoRegistration(ctx, "", func(ctx context.Context, c registration.Registration) error {
				return fn(ctx, watched{c, seen})
			})
		}
		return New(r.cfg), w
	}

	before, _ := life()
	check.NoError(t, errOf(before.Register(t.Context(), "default", instance("left"))))
	check.NoError(t, errOf(before.Register(t.Context(), "default", instance("kept"))))
	check.NoError(t, c.Client(c.Management).Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID:   "foreign",
		Name: "foreign",
	}))

	r, w := life()
	w.list("kept", true)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	defer running.Wait()
	defer cancel()

	t.Run("what an earlier life left is taken out", func(t *testing.T) {
		check.Eventually(t, "only kept is there", func() bool { return slices.Equal(there(), []string{"foreign", "kept"}) })
		check.Eventually(t, "it was told", func() bool { return slices.Equal(told(r), []string{"removed left"}) })
	})

	t.Run("calls beside the sync", func(t *testing.T) {
		before := len(told(r))
		want := []string{"foreign", "kept"}
		var working sync.WaitGroup
		for n := range 12 {
			id := fmt.Sprintf("s%02d", n)
			if n%2 == 0 {
				want = append(want, id)
			}
			working.Go(func() {
				for range 3 {
					if err := errOf(r.Register(ctx, "default", instance(id))); err != nil {
						t.Error(err)
					}
					w.list(id, true)
					r.Changed()
					if n%2 == 0 {
						continue
					}
					if err := r.Deregister(ctx, "default", id); err != nil {
						t.Error(err)
					}
					w.list(id, false)
					r.Changed()
				}
			})
		}
		working.Wait()
		if got := there(); !slices.Equal(got, want) {
			t.Errorf("Consul has %q, want %q", got, want)
		}
		check.Eventually(t, "a sync has nothing to do", func() bool { return seen.waits(len(want) - 1) })
		if got := there(); !slices.Equal(got, want) {
			t.Errorf("in the end Consul has %q, want %q", got, want)
		}
		if done := told(r)[before:]; len(done) > 0 {
			t.Errorf("the sync had to do %q", done)
		}
	})

	t.Run("drift is repaired", func(t *testing.T) {
		check.NoError(t, c.Client(c.Management).Agent().ServiceDeregister("s02"))
		check.Eventually(t, "it is back", func() bool { return slices.Contains(there(), "s02") })
		check.Eventually(t, "it was told", func() bool { return slices.Contains(told(r), "registered s02") })
	})

	t.Run("the health of a process", func(t *testing.T) {
		w.mu.Lock()
		w.beats = map[string][]registration.Beat{"default": {{ID: "alive", Healthy: true, Output: "it lives"}}}
		w.mu.Unlock()
		check.NoError(t, errOf(r.Register(ctx, "default", instance("alive", process("3s")))))
		passing := func() bool {
			health, _, err := c.Client(c.Management).Agent().AgentHealthServiceByID("alive")
			check.NoError(t, err)
			return health == api.HealthPassing
		}
		check.Eventually(t, "it passes", passing)
		w.mu.Lock()
		w.beats = map[string][]registration.Beat{"default": {{ID: "alive", Output: "it has ended"}}}
		w.mu.Unlock()
		check.Eventually(t, "it does not pass", func() bool { return !passing() })
	})

	t.Run("Consul is away", func(t *testing.T) {
		proxy.Down()
		r.Changed()
		check.Eventually(t, "it is told", func() bool { return strings.HasPrefix(r.Problems()["default"], "sync with") })
		if err := errOf(r.Register(ctx, "default", instance("late"))); status.Code(err) != codes.Unavailable {
			t.Errorf("while it is away: %v", err)
		}
		if err := r.Deregister(ctx, "default", "s00"); status.Code(err) != codes.Unavailable {
			t.Errorf("while it is away: %v", err)
		}
		w.list("s00", false)
		proxy.Up(t)
		r.Changed()
		check.Eventually(t, "it works again", func() bool { return r.Problems()["default"] == "" })
		check.Eventually(t, "what could not be taken out is", func() bool { return !slices.Contains(there(), "s00") })
		if slices.Contains(there(), "late") {
			t.Error("what could not be registered is there")
		}
	})

	t.Run("the plugin is killed", func(t *testing.T) {
		check.NoError(t, syscall.Kill(plugins.Status()[0].PID, syscall.SIGKILL))
		check.NoError(t, c.Client(c.Management).Agent().ServiceDeregister("s04"))
		check.Eventually(t, "what is missing is back", func() bool { return slices.Contains(there(), "s04") })
	})

	t.Run("no error has the token", func(t *testing.T) {
		secret, err := os.ReadFile(reached.TokenFile)
		check.NoError(t, err)
		for _, e := range r.cfg.Events.Recent(1000) {
			if strings.Contains(e.Message, strings.TrimSpace(string(secret))) {
				t.Errorf("event %q", e.Message)
			}
		}
	})
}

func errOf[T any](_ T, err error) error { return err }

// spy records which sync is in progress.
type spy struct {
	mu  sync.Mutex
	now *registration.SyncRequest
}

// watched is a plugin's client that reports to the spy.
type watched struct {
	registration.Registration
	spy *spy
}

func (w watched) Sync(ctx context.Context, c service.Consul, req registration.SyncRequest) (uint64,
	[]registration.Change, error,
) {
	w.spy.set(&req)
	defer w.spy.set(nil)
	return w.Registration.Sync(ctx, c, req)
}

func (s *spy) set(req *registration.SyncRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = req
}

// waits says that the sync of that many instances has nothing to do and waits in Consul.
func (s *spy) waits(instances int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now != nil && s.now.Index > 0 && len(s.now.Instances) == instances
}
