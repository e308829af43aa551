package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

func TestSecondAgentOnOneDataDirIsRefused(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, "")
	h.Start()
	second := h.Write("second.hcl",
		fmt.Sprintf("data_dir = %q\nsocket = %q\nports {\n  http = 0\n}\n", h.Path("data"), h.Path("second.sock")))
	h.Refused(1, []string{"another agent (pid " + strconv.Itoa(h.PID()) + ")", h.Path("data")}, "agent", "-config", second)
	if _, err := h.Status(); err != nil {
		t.Errorf("the first agent is disturbed: %v", err)
	}
}

// A data directory may be a symbolic link, as on machines with a separate disk for it.
func TestLinkedDataDir(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	if err := os.Mkdir(h.Path("disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(h.Path("disk"), h.Path("data")); err != nil {
		t.Fatal(err)
	}
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	h.Kill()
	h.Start()
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}

// Only root, and users that the agent is configured to trust, can read the files in the data directory.
func TestDataDirIsClosed(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	err := filepath.WalkDir(h.Path("data"), func(path string, d os.DirEntry, err error) error {
		if err != nil || path == h.Path("data") || path == h.Path("data/drivers") || filepath.Base(path) == "plugins" {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if strings.Contains(path, "/plugins/") {
			if d.IsDir() && filepath.Base(filepath.Dir(path)) == "plugins" {
				return filepath.SkipDir // plugins that run as another user can read it, which other tests cover
			}
			return nil
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %s", strings.TrimPrefix(path, h.Dir), info.Mode())
		}
		if d.IsDir() {
			return filepath.SkipDir // its contents cannot be reached
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A failed start ends the plugins and drivers that it has started, but not those that an earlier agent left.
func TestFailedStartLeavesNoProcess(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	must(t, os.Mkdir(h.Socket(), 0o700)) // opening the API, the last step of a start, fails
	refused := func() {
		t.Helper()
		h.Refused(1, []string{"start the agent: API", h.Socket()}, "agent", "-config", h.Path("agent.hcl"))
	}
	refused()
	if left := h.Processes(); len(left) > 0 {
		t.Errorf("processes %v are left by a failed start", left)
	}

	must(t, os.Remove(h.Socket()))
	h.Start()
	h.Stop() // the plugin and the driver keep running
	before := h.Processes()
	if len(before) < 2 {
		t.Fatalf("an agent that was stopped leaves processes %v", before)
	}
	must(t, os.Mkdir(h.Socket(), 0o700))
	refused()
	if after := h.Processes(); !slices.Equal(before, after) {
		t.Errorf("a start that failed found processes %v and left %v", before, after)
	}
}

// If no plugin supports something in the configuration, the agent does not start, or it is not ready and
// reports why.
func TestAgentWithoutItsPlugins(t *testing.T) {
	t.Parallel()
	t.Run("no plugin at all", func(t *testing.T) {
		t.Parallel()
		h := testhost.New(t, testhost.LocalDriver(t))
		must(t, os.Remove(filepath.Join(h.PluginDir, "csi-bridge")))
		h.Refused(1, []string{"there is no plugin in " + h.PluginDir, `csi_driver "local"`}, "agent", "-config",
			h.Path("agent.hcl"))
		if left := h.Processes(); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
	})
	t.Run("a plugin of another kind", func(t *testing.T) {
		t.Parallel()
		h := testhost.New(t, testhost.LocalDriver(t), "sids")
		bridge := filepath.Join(h.PluginDir, "csi-bridge")
		must(t, os.Rename(bridge, h.Path("csi-bridge")))
		h.Begin()
		h.Eventually("the log says what is missing", func() error {
			if log := h.LogTail(); !strings.Contains(log, "the agent is not up") ||
				!strings.Contains(log, "needs a plugin of kind storage.v1") {
				return os.ErrNotExist
			}
			return nil
		})
		if s, err := h.Status(); err != nil || s.GetReady() || !strings.Contains(s.GetMessage(), "needs a plugin of kind storage.v1") {
			t.Errorf("the status is %v (%v)", s, err)
		}
		if strings.Contains(h.LogTail(), "the agent is up") {
			t.Error("the log says that the agent is up")
		}
		must(t, os.Rename(h.Path("csi-bridge"), bridge))
		h.AwaitReady()
		h.Eventually("the log says that it is up", func() error {
			if !strings.Contains(h.LogTail(), "the agent is up") {
				return os.ErrNotExist
			}
			return nil
		})
	})
	for name, c := range map[string]struct{ more, says string }{
		"no plugin for Consul": {
			"consul {\n  address = \"http://127.0.0.1:9\"\n}\n", "needs a plugin of kind registration",
		},
		"a configured plugin is missing": {"plugin \"sids\" {\n}\n", `plugin "sids" is configured`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := testhost.New(t, c.more)
			h.Begin()
			h.Eventually("the status says what is missing", func() error {
				s, err := h.Status()
				if err == nil && (s.GetReady() || !strings.Contains(s.GetMessage(), c.says)) {
					err = fmt.Errorf("ready %t: %s", s.GetReady(), s.GetMessage())
				}
				return err
			})
		})
	}
}
