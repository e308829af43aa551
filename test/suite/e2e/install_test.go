package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// csi-bridge is installed from a directory before the agent starts, and upgraded while workloads start and stop, none
// of which fails. It is removed with its files once nothing depends on it.
func TestInstallUpgradeAndRemove(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	must(t, os.Remove(filepath.Join(h.PluginDir, "csi-bridge")))
	config := "-config=" + h.Path("agent.hcl")
	releases := h.Path("releases")
	must(t, os.Mkdir(releases, 0o755))
	publish := func(version string) {
		data, err := os.ReadFile(testbin.BuildVersion(t, "plugins/csi-bridge", version))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(releases, "csi-bridge_v"+version), data, 0o644))
	}
	publish("1.1.0")
	h.Run("agent", "plugin", "install", config, "-version", "~> 1.0", releases)
	h.Start()
	if p, err := bridge(h); err != nil || p.GetVersion() != "1.1.0" {
		t.Fatalf("%v serves: %v", p, err)
	}

	volume(h, drivers[0], "data", "single-node-writer", "")
	var done atomic.Int64
	var loop sync.WaitGroup
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	loop.Go(func() {
		for c := h.Client(); ; done.Add(1) {
			select {
			case <-ended:
				return
			default:
			}
			if err := startAndStop(t.Context(), c, "w", "data"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer loop.Wait()
	defer end()
	more := func() {
		t.Helper()
		from := done.Load()
		h.Eventually("more workloads came and went", func() error {
			if n := done.Load() - from; n < 3 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
	}
	more()
	publish("1.2.0")
	publish("2.0.0")
	h.Run("agent", "plugin", "upgrade", config, "csi-bridge")
	h.Eventually("the new version serves", func() error {
		p, err := bridge(h)
		if err == nil && p.GetVersion() != "1.2.0" {
			err = fmt.Errorf("it is %v", p)
		}
		return err
	})
	more()
	end()
	loop.Wait()
	drained(t, h)

	spec := workload(h, "w", "data", "")
	h.Run("workload", "start", spec)
	h.Refused(4, []string{"workloads depend on it"}, "plugin", "remove", "-files", "csi-bridge")
	h.Run("workload", "stop", spec)
	h.NothingInUse()
	h.Run("plugin", "remove", "-files", "csi-bridge")
	if left, err := os.ReadDir(h.PluginDir); err != nil || len(left) > 0 {
		t.Errorf("left in the plugin directory: %v, %v", left, err)
	}
	h.Refused(1, []string{"use pannier agent plugin install SOURCE"}, "agent", "plugin", "upgrade", config, "csi-bridge")
}
