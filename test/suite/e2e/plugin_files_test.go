package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// The storage plugin's file is deleted while a volume is in use, and the agent is started again: the copy that served
// goes on, says so, and releases the volume. The plugin is removed when nothing depends on it.
func TestThePluginsFileIsDeleted(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	must(t, os.Remove(filepath.Join(h.PluginDir, "csi-bridge")))
	h.Kill()
	h.Start()
	for _, status := range [][]string{{"status"}, {"plugin", "status"}} {
		h.Eventually("the status says so", func() error {
			says := `plugin "csi-bridge": open the plugin: ` + h.PluginDir + " has no file of it"
			if out := h.Run(status...); !strings.Contains(out, says) {
				return errors.New(out)
			}
			return nil
		})
	}
	if out := h.Run("events", "-recent", "1000"); !strings.Contains(out, "file-problem") {
		t.Errorf("no event says so:\n%s", out)
	}
	h.Refused(4, []string{`workloads depend on it: volume "data" of workload "w":`}, "plugin", "remove", "csi-bridge")
	h.Run("agent", "stop", "-plugins")
	h.AwaitEnd()
	h.Start()
	h.Run("workload", "stop", "w")
	h.NothingInUse()
	h.Run("plugin", "remove", "csi-bridge")
	h.Refused(3, []string{"csi-bridge"}, "plugin", "status", "csi-bridge")
}
