package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// install copies a program into the plugin directory.
func install(t *testing.T, h *testhost.Host, program, as string) {
	t.Helper()
	data, err := os.ReadFile(program)
	check.NoError(t, err)
	path := filepath.Join(h.PluginDir, as)
	check.NoError(t, os.WriteFile(path+".tmp", data, 0o755)) //nolint:gosec // it is a program
	check.NoError(t, os.Rename(path+".tmp", path))
}

// A host has two storage plugins. Each driver is reached through its own, under the next agent too.
func TestTwoStoragePlugins(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, "")
	scratch := h.Path("scratch")
	check.NoError(t, os.MkdirAll(filepath.Join(scratch, "notes"), 0o755)) //nolint:gosec // a workload's user reads it
	text, err := os.ReadFile(h.Path("agent.hcl"))
	check.NoError(t, err)
	named := fmt.Sprintf("%s\n%s\ncsi_driver \"scratch\" {\n  plugin = \"dirs\"\n  endpoint = \"unix://%s\"\n}\n", text,
		testhost.LocalDriver(t), scratch)
	h.Write("agent.hcl", named)
	install(t, h, testbin.BuildDir(t, filepath.Join(testbin.Root(), "examples/plugins/dirs")), "dirs")
	h.Start()

	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("volume", "register", h.Write("notes.hcl", `
id          = "notes"
type        = "csi"
plugin_id   = "scratch"
external_id = "notes"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`))
	spec := h.Write("both.hcl", `
workload "both" {
  volume "data" {
    source      = "data"
    destination = "/srv/data"
  }
  volume "notes" {
    source      = "notes"
    destination = "/srv/notes"
  }
}
`)
	for _, agent := range []string{"the first agent", "one that finds both"} {
		h.Run("workload", "start", spec)
		for plugin, serves := range map[string]string{"csi-bridge": `csi_driver "local"`, "dirs": `csi_driver "scratch"`} {
			if out := h.Run("plugin", "status", plugin); !strings.Contains(out, "Serves         "+serves) {
				t.Errorf("%s: %s", agent, out)
			}
		}
		at := h.Path("data/csi/scratch/per-workload/both/default/notes/rw-file-system-single-node-writer/notes/own")
		check.NoError(t, os.WriteFile(at, nil, 0o600))
		if _, err := os.Stat(filepath.Join(scratch, "notes/own")); err != nil {
			t.Errorf("%s: the volume is not the plugin's: %v", agent, err)
		}
		h.Kill()
		h.Start()
		h.Run("workload", "stop", "both")
	}

	// A plugin that a workload alone depends on is not removed; one that no block names says so.
	h.Run("workload", "start", spec)
	check.NoError(t, os.Remove(filepath.Join(h.PluginDir, "dirs")))
	h.Eventually("the file is missed", func() error {
		if out := h.Run("plugin", "status", "dirs"); !strings.Contains(out, "has no file of it") {
			return errors.New(out)
		}
		return nil
	})
	h.Refused(4, []string{`volume "notes" of workload "both"`}, "plugin", "remove", "dirs")
	h.Run("workload", "stop", "both")
	h.NothingInUse()
	h.Refused(4, []string{`it is named by csi_driver "scratch"`}, "plugin", "remove", "dirs")
	h.Write("agent.hcl", string(text)+testhost.LocalDriver(t))
	h.Stop()
	h.Start()
	if out := h.Run("plugin", "status"); !strings.Contains(out, `csi_driver "local" uses csi-bridge: name "dirs" in a block`) {
		t.Errorf("a plugin that nothing names: %s", out)
	}
	h.Run("plugin", "remove", "dirs")
}

// A workload has an identity from an issuer that is no Consul, on a host without a consul block and without a plugin
// that registers services.
func TestIssuer(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	h := testhost.New(t, fmt.Sprintf("ports {\n  http = %d\n}\n", port))
	text, err := os.ReadFile(h.Path("agent.hcl"))
	check.NoError(t, err)
	h.Write("agent.hcl", fmt.Sprintf(`%s
identity "spiffe" {
  plugin = "issuer"
}
plugin "issuer" {
  config {
    jwks = "http://127.0.0.1:%d/.well-known/jwks.json"
  }
}
`, text, port))
	install(t, h, testbin.Build(t, "test/lib/issuer"), "issuer")
	h.Launch()

	issued := func(n int) {
		t.Helper()
		h.Eventually("the issuer's metric", func() error {
			want := fmt.Sprintf("pannier_plugin_custom_identities{plugin=\"issuer\"} %d\n", n)
			resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v1/metrics", port)) //nolint:noctx // the host ends with the test
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			page, err := io.ReadAll(resp.Body)
			if err == nil && !strings.Contains(string(page), want) {
				err = errors.New("the page lacks " + want)
			}
			return err
		})
	}
	spec := h.Write("report.hcl", `
workload "report" {
  identity "report" {
    issuer = "spiffe"
  }
}
`)
	h.Run("workload", "start", spec)
	file := h.Path("data/secrets/default/report/report/si_token")
	token, err := os.ReadFile(file)
	check.NoError(t, err)
	if !strings.HasPrefix(string(token), "spiffe:") {
		t.Errorf("the token is %q", token)
	}
	issued(1)
	// The next process of the plugin, under the next agent, knows it.
	before := h.Run("plugin", "status", "issuer")
	program, err := os.ReadFile(filepath.Join(h.PluginDir, "issuer"))
	check.NoError(t, err)
	h.Kill()
	check.NoError(t, os.WriteFile(h.Path("issuer"), append(program, 0), 0o755)) //nolint:gosec // it is a program
	check.NoError(t, os.Rename(h.Path("issuer"), filepath.Join(h.PluginDir, "issuer")))
	h.Start()
	h.Eventually("the next process serves", func() error {
		if out := h.Run("plugin", "status", "issuer"); !strings.Contains(out, "Generation     2") {
			return fmt.Errorf("before: %s; now: %s", before, out)
		}
		return nil
	})
	h.Kill()
	h.Start()
	issued(1)
	if again, err := os.ReadFile(file); err != nil || string(again) != string(token) {
		t.Errorf("under the next agent: %q, %v", again, err)
	}
	if out := h.Run("workload", "start", "-o", "docker", spec); !strings.Contains(out, "PANNIER_TOKEN_FILE_REPORT") ||
		strings.Contains(out, "CONSUL_HTTP_TOKEN_FILE") {
		t.Errorf("the environment: %s", out)
	}
	h.Run("workload", "stop", "report")
	issued(0)

	// What nobody serves is refused before the first step.
	h.Refused(4, []string{"unknown issuer", "it has spiffe"}, "workload", "start", h.Write("x.hcl", `
workload "x" {
  identity "who" {}
}
`))
	install(t, h, testbin.Build(t, "plugins/consul-services"), "consul-services")
	text, err = os.ReadFile(h.Path("agent.hcl"))
	check.NoError(t, err)
	h.Write("agent.hcl", string(text)+"consul \"mesh\" {\n  address = \"127.0.0.1:1\"\n}\n")
	h.Stop()
	h.Start()
	h.Refused(4, []string{`consul "mesh" needs a plugin of kind bootstrap.v1`}, "workload", "start", h.Write("y.hcl", `
workload "y" {
  service "y" {
    consul = "mesh"
    connect {
      sidecar_service {}
    }
  }
}
`))
	if out := h.Run("workload", "status"); strings.Contains(out, "failed") {
		t.Errorf("the refused ones have begun: %s", out)
	}
	if out := h.Run("plugin", "status", "issuer"); !strings.Contains(out, `identity "spiffe"`) {
		t.Errorf("the status of the issuer: %s", out)
	}
	h.NothingInUse()
}
