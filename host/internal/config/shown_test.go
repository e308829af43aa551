package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// What is shown of a configuration has none of its secrets, and all of them are known.
func TestShownWithoutSecrets(t *testing.T) {
	a := &Agent{
		Name: "n", DataDir: "/data", SecretsDir: "/run/secrets", Gossip: KeySource{Key: "MDEyMzQ1Njc4OWFiY2RlZg=="},
		TracesEndpoint: "https://user:traces-secret@traces:4318",
		Consuls:        []Consul{{Consul: service.Consul{TokenFile: "/etc/consul.token"}}},
		Plugins: []Plugin{{
			Name: "x", Env: map[string]string{"STATSD_TOKEN": "variable-secret"},
			Config: []byte(`{"token": "plugin-secret", "rate": 7, "other": "text of a plugin",
			"nested": [{"password_file": "/etc/x.password"}]}`),
		}},
		Drivers: []Driver{{
			ID: "d", Env: map[string]string{"PASSWORD": "driver-secret", "CERT": "file:///etc/d.cert", "MODE": "plain"},
			Controller: &Driver{ID: "d", Env: map[string]string{"API_KEY": "controller-secret"}},
		}},
	}
	text := check.Must(a.Shown())(t)
	for _, hidden := range []string{
		"MDEyMzQ1Njc4OWFiY2RlZg", "plugin-secret", "variable-secret", "text of a plugin", "driver-secret",
		"controller-secret", "traces-secret",
	} {
		if strings.Contains(string(text), hidden) {
			t.Errorf("%s is shown: %s", hidden, text)
		}
	}
	var shown struct {
		Name    string
		Plugins []struct {
			Name   string
			Config map[string]any
		}
		Drivers []struct{ Env map[string]string }
		Consuls []struct {
			TokenFile string `json:"token_file"`
		}
	}
	check.NoError(t, json.Unmarshal(text, &shown))
	if shown.Name != a.Name || len(shown.Plugins) != 1 || shown.Plugins[0].Name != "x" ||
		shown.Plugins[0].Config["rate"] != 7.0 || shown.Plugins[0].Config["token"] != redacted ||
		shown.Drivers[0].Env["CERT"] != "file:///etc/d.cert" || shown.Consuls[0].TokenFile != "/etc/consul.token" {
		t.Errorf("%s", text)
	}
	if a.Drivers[0].Env["PASSWORD"] != "driver-secret" || a.Plugins[0].Env["STATSD_TOKEN"] != "variable-secret" {
		t.Error("the configuration itself is changed")
	}
	values, files := a.Secrets()
	for where, value := range map[string]string{
		"encrypt: key": "MDEyMzQ1Njc4OWFiY2RlZg==", `plugin "x": token`: "plugin-secret",
		`plugin "x": STATSD_TOKEN`: "variable-secret", "traces: password": "traces-secret",
		`csi_driver "d": PASSWORD`: "driver-secret", `csi_driver "d": API_KEY`: "controller-secret",
	} {
		if values[where] != value {
			t.Errorf("the secret of %s is not among %q", where, values)
		}
	}
	for _, path := range []string{
		"/etc/consul.token", "/etc/x.password", "/etc/d.cert", a.SecretsDir, a.DataDir + "/secrets.key",
	} {
		if !slices.Contains(files, path) {
			t.Errorf("%s is not among %q", path, files)
		}
	}
	if len(values) != 6 {
		t.Errorf("%q", values)
	}
}
