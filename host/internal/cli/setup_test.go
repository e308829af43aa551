package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/test/lib/check"
)

// setupHost has a plugin that keeps its input instead of calling a Consul, and answers with a report.
func setupHost(t *testing.T, config, report string) (path string, input func() setupInput) {
	t.Helper()
	dir := t.TempDir()
	if err := trusted.Dir(dir); err != nil {
		t.Skipf("plugins cannot be in a temporary directory: %v", err)
	}
	path = filepath.Join(dir, "agent.hcl")
	check.NoError(t,
		os.WriteFile(path, []byte("name = \"n1\"\nplugin_dir = \"plugins\"\nsocket = \"/nonexistent/api.sock\"\n"+
			config), 0o600))
	check.NoError(t, os.Mkdir(filepath.Join(dir, "plugins"), 0o755))
	sids := "#!/bin/sh\n/bin/cat >" + dir + "/input\n/usr/bin/env >" + dir + "/env\n/bin/echo '" + report + "'\n"
	check.NoError(t, os.WriteFile(filepath.Join(dir, "plugins/sids"), []byte(sids), 0o755))
	return path, func() (in setupInput) {
		t.Helper()
		check.NoError(t, json.Unmarshal(check.Must(os.ReadFile(filepath.Join(dir, "input")))(t), &in))
		if env := string(check.Must(os.ReadFile(filepath.Join(dir, "env")))(t)); strings.Contains(env, "CONSUL_") {
			t.Errorf("the plugin has the environment %s", env)
		}
		return in
	}
}

// runSetupConsul runs the command, which must end with a code, and returns its standard output.
func runSetupConsul(t *testing.T, code int, args ...string) string {
	t.Helper()
	out := check.Must(os.CreateTemp(t.TempDir(), "out"))(t)
	defer out.Close()
	errs := check.Must(os.CreateTemp(t.TempDir(), "err"))(t)
	defer errs.Close()
	args = append([]string{"setup", "consul"}, args...)
	got := Main(Options{Name: "pannier", Args: args, Stdout: out, Stderr: errs})
	text := check.Must(os.ReadFile(errs.Name()))(t)
	if got != code {
		t.Fatalf("%q: exit code %d, want %d: %s", args, got, code, text)
	}
	return string(check.Must(os.ReadFile(out.Name()))(t))
}

// The plugin is told what the configuration, the flags and Consul's variables say.
func TestSetupConsulInput(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "the-secret")
	t.Setenv("CONSUL_HTTP_ADDR", "https://10.0.0.1:8501")
	path, input := setupHost(t, `
consul {
  address     = "https://127.0.0.1:8501"
  token_file  = "/run/t"
  auth_method = "m"
}
`, `{"steps": [{"object": "policy x", "text": "is there"}]}`)
	out := runSetupConsul(t, 0, "-config", path, "-services", "default=web,db", "-services", "dev=*", "-dry-run")
	if out != "policy x: is there\n" {
		t.Errorf("%s", out)
	}
	in := input()
	if in.Mode != "dry-run" || in.Token != "the-secret" || in.Consul.Address != "https://127.0.0.1:8501" ||
		in.Consul.AuthMethod != "m" || in.NodeTokenFile != "/run/t" || !in.Configured || in.Node != "n1" ||
		len(in.Services["default"]) != 2 || len(in.Services["dev"]) != 1 || !strings.Contains(in.NoKeys, "no such socket") {
		t.Errorf("%+v", in)
	}

	path, input = setupHost(t, "",
		`{"steps": [{"object": "policy x", "text": "is missing", "wrong": true}], "config": "consul {}\n"}`)
	out = runSetupConsul(t, ExitError, "-config", path, "-check")
	if in := input(); in.Mode != "check" || in.Configured || in.Consul.Address != "https://10.0.0.1:8501" ||
		in.NodeTokenFile != filepath.Join(filepath.Dir(path), "consul.token") {
		t.Errorf("without a block: %+v", in)
	}
	if !strings.HasSuffix(out, "\nconsul {}\n") {
		t.Errorf("%s", out)
	}
	runSetupConsul(t, ExitUsage, "-config", path, "-services", "web")
	runSetupConsul(t, ExitUsage, "-config", path, "-login", "-minted")
}
