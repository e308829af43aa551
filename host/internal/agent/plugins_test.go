package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

func TestDebuggedPlugins(t *testing.T) {
	configured, none, dir := []supervisor.Plugin{{Name: "a", Version: "~> 1.0"}, {Name: "b"}}, t.TempDir(), t.TempDir()
	t.Setenv("PANNIER_REATTACH_PLUGINS", `{"a":"/tmp/of-the-environment"}`)
	if got, err := debugged(configured, none); err != nil || len(got) != 2 ||
		!slices.Equal(got[0].Env, []string{"PANNIER_PLUGIN_DEBUG_SOCKET=/tmp/of-the-environment"}) {
		t.Errorf("of the environment: %+v, %v", got, err)
	}
	file := filepath.Join(dir, "reattach.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"c":{"Protocol":"grpc","ProtocolVersion":1,"Pid":7,"Test":true,"Addr":{"Network":"unix","String":"/tmp/c/plugin.sock"}},` +
		`"a":"/tmp/a/plugin.sock"}`)
	got, err := debugged(configured, dir)
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, want := range map[string][]string{
		"a": {"PANNIER_PLUGIN_DEBUG_SOCKET=/tmp/a/plugin.sock"}, "b": nil,
		"c": {"PANNIER_PLUGIN_DEBUG_SOCKET=/tmp/c/plugin.sock"},
	} {
		n := slices.IndexFunc(got, func(p supervisor.Plugin) bool { return p.Name == name })
		if !slices.Equal(got[n].Env, want) {
			t.Errorf("%s has %q", name, got[n].Env)
		}
	}
	if got[0].Version != "~> 1.0" || configured[0].Env != nil {
		t.Errorf("%+v of %+v", got, configured)
	}
	for _, sockets := range []string{"dirs", `["a"]`, `{"a":"plugin.sock"}`, `{"a":{"Addr":{}}}`} {
		t.Setenv("PANNIER_REATTACH_PLUGINS", sockets)
		if _, err := debugged(nil, none); err == nil || !strings.Contains(err.Error(), "PANNIER_REATTACH_PLUGINS") {
			t.Errorf("%s: %v", sockets, err)
		}
		write(sockets)
		if _, err := debugged(nil, dir); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", sockets, err)
		}
	}
}

// A plugin that a block names is waited for as one with a block of its own, and is not removed while it is named.
func TestNamedPlugins(t *testing.T) {
	cfg := &config.Agent{
		Plugins: []config.Plugin{{Name: "page"}},
		Drivers: []config.Driver{{ID: "d", Plugin: "mine"}, {ID: "e", Plugin: "mine"}, {ID: "f"}},
		Consuls: []config.Consul{{IdentityOnly: true, IdentityPlugin: "tokens"}},
	}
	var names []string
	for _, p := range named(configured(cfg), cfg) {
		names = append(names, p.Name)
	}
	if want := []string{"page", "mine", "tokens"}; !slices.Equal(names, want) {
		t.Errorf("the supervisor waits for %q, want %q", names, want)
	}
	a := &agent{cfg: cfg}
	a.blocks.Store(cfg)
	for plugin, want := range map[string][]string{
		"page": {`plugin "page"`}, "mine": {`csi_driver "d"`, `csi_driver "e"`}, "csi-bridge": nil,
	} {
		if got := a.naming(plugin); !slices.Equal(got, want) {
			t.Errorf("%s is named by %q, want %q", plugin, got, want)
		}
	}
}

func TestHostIP(t *testing.T) {
	for _, c := range []struct{ bind, advertise, want string }{
		{"127.0.0.1", "", "127.0.0.1"},
		{"0.0.0.0", "", "127.0.0.1"},
		{"192.0.2.1", "", "192.0.2.1"},
		{"0.0.0.0", "192.0.2.2", "192.0.2.2"},
	} {
		if got := hostIP(&config.Agent{BindAddr: c.bind, AdvertiseAddr: c.advertise}); got != c.want {
			t.Errorf("of bind_addr %q and advertise_addr %q it is %q, want %q", c.bind, c.advertise, got, c.want)
		}
	}
}
