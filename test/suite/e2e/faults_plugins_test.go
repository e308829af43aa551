package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// misbehaving are the modes of the supervisor's fixture, and what the host reports for each. The last ones
// have no message: one is still being retried, and two work.
var misbehaving = []struct{ name, more, says string }{
	{"exit", "", "the disk is on fire"},
	{"garbage", "", "garbage"},
	{"endless-line", "", "endless-line"},
	{"wrong-cookie", "", "wrong-cookie"},
	{"crash-soon", "", "exit status 9"},
	{"bad-version", "", "malformed version"},
	{"wrong-checksum", `checksum = "sha256:` + strings.Repeat("0", 64) + `"`, "checksum"},
	{"hang", "", ""},
	{"flood", "", ""},
	{"print", "", ""},
}

// Plugins that misbehave in every known way are installed next to csi-bridge. The host starts, reports each
// of them in its status and in events, and works.
func TestBadPluginsBesideAGoodOne(t *testing.T) {
	t.Parallel()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})
	config := fmt.Sprintf("csi_driver \"faulty\" {\n  endpoint = %q\n  settle_time = \"1s\"\n}\n", d.Endpoint())
	for _, p := range misbehaving {
		config += fmt.Sprintf("plugin %q {\n  args = [%q]\n  %s\n}\n", p.name, p.name, p.more)
	}
	h := testhost.New(t, config)
	program, err := os.ReadFile(testbin.BuildDir(t,
		filepath.Join(testbin.Root(), "host/internal/pluginhost/supervisor/testdata/plugin")))
	must(t, err)
	for _, p := range misbehaving {
		named := append(slices.Clip(program), "\n#named "+p.name+"\n"...) // otherwise all would be one plugin
		must(t, os.WriteFile(filepath.Join(h.PluginDir, p.name), named, 0o755))
	}
	h.Start()
	c := h.Client()
	must(t, register(t.Context(), c, d, "v", "single-node-writer"))
	for range 5 {
		must(t, startAndStop(t.Context(), c, "w", "v"))
	}
	h.Eventually("every bad plugin is reported", func() error {
		status, events := h.Run("plugin", "status"), h.Run("events", "-recent", "1000")
		for _, p := range misbehaving {
			if line := lineOf(status, p.name); line == "" || !strings.Contains(status, p.says) {
				return fmt.Errorf("plugin %s is not told of with %q:\n%s", p.name, p.says, status)
			}
			if p.says != "" && !strings.Contains(events, p.name) {
				return fmt.Errorf("no event is about plugin %s:\n%s", p.name, events)
			}
		}
		return nil
	})
	if line := lineOf(h.Run("plugin", "status"), "csi-bridge"); !strings.Contains(line, "running") {
		t.Errorf("the good plugin is %q", line)
	}
	h.NothingInUse()
	lawful(t, d)
}

func lineOf(text, begin string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin+" ") {
			return line
		}
	}
	return ""
}
