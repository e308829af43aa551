package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A storage plugin brings its driver, so that a workload gets a volume without a csi_driver block, keeps it over a
// crash of the agent, and over a change of the plugin's configuration that brings the driver no more.
func TestPluginBringsItsDriver(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, "")
	root := h.Path("volumes")
	check.NoError(t, os.Mkdir(root, 0o755)) //nolint:gosec // a workload's user reads it
	text, err := os.ReadFile(h.Path("agent.hcl"))
	check.NoError(t, err)
	configured := func(config string) string {
		return fmt.Sprintf("%s\nplugin \"dirs\" {\n  config {\n    %s\n  }\n}\n", text, config)
	}
	h.Write("agent.hcl", configured(fmt.Sprintf("root = %q", root)))
	install(t, h, testbin.BuildDir(t, filepath.Join(testbin.Root(), "examples/plugins/dirs")), "dirs")
	h.Launch()
	shows := func(what string, words ...string) {
		t.Helper()
		h.Eventually(what, func() error {
			res := h.Try("driver", "status", "dirs")
			for _, w := range words {
				if !strings.Contains(res.Stdout, w) {
					return fmt.Errorf("%q is not in %s %s", w, res.Stdout, res.Stderr)
				}
			}
			return nil
		})
	}
	shows("the driver is there", "GET_VOLUME_STATS", "plugin", root)

	if out := h.Run("plugin", "status", "dirs"); !strings.Contains(out, `Serves         driver "dirs"`) {
		t.Error(out)
	}
	h.Run("volume", "create", h.Write("notes.hcl", `
id        = "notes"
type      = "csi"
plugin_id = "dirs"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`))
	spec := workload(h, "writer", "notes", "")
	h.Run("workload", "start", spec)
	mounted := func() {
		t.Helper()
		if got := h.VolumeMounts(); len(got) != 1 {
			t.Errorf("mounted is %q", got)
		}
	}
	mounted()
	h.Kill()
	h.Start()
	mounted()
	h.Run("workload", "stop", "writer")
	h.NothingInUse()

	h.Run("workload", "start", spec)
	h.Write("agent.hcl", configured(`mode = "0700"`))
	h.Run("agent", "reload")
	shows("the driver is kept", "does not bring it any more", "in use")
	mounted()
	h.Kill()
	h.Start()
	shows("the driver is kept by the next agent", "does not bring it any more", "in use")
	h.Run("workload", "stop", "writer")
	h.NothingInUse()
	gone := func() error {
		if out := h.Run("driver", "status"); strings.Contains(out, "dirs") {
			return errors.New(out)
		}
		return nil
	}
	h.Eventually("the driver is gone", gone)

	// The plugin is removed, although its block names it: its driver goes with it.
	h.Write("agent.hcl", configured(fmt.Sprintf("root = %q", root)))
	h.Run("agent", "reload")
	shows("the driver is back", "plugin", root)
	h.Refused(4, []string{`it is named by plugin "dirs"`}, "plugin", "remove", "-files", "dirs")
	h.Run("plugin", "remove", "-files", "-force", "-yes", "dirs")
	h.Eventually("the driver is gone with its plugin", gone)
	h.Refused(1, []string{"pannier agent plugin install SOURCE dirs"}, "doctor")
	install(t, h, testbin.BuildDir(t, filepath.Join(testbin.Root(), "examples/plugins/dirs")), "dirs")
	shows("the driver is back with its plugin", "plugin", root)

	// A csi_driver block of the same id comes first, and the plugin's status says so.
	h.Write("agent.hcl", fmt.Sprintf("%s\ncsi_driver \"dirs\" {\n  plugin = \"dirs\"\n  endpoint = \"unix://%s\"\n}\n",
		configured(fmt.Sprintf("root = %q", root)), root))
	h.Run("agent", "reload")
	h.Eventually("the plugin's own driver is not used", func() error {
		out := h.Run("plugin", "status", "dirs")
		if !strings.Contains(out, `its driver "dirs" is not used: the csi_driver block`) {
			return errors.New(out)
		}
		return nil
	})
	shows("the declared driver is there", "config", "unix://"+root)
}
