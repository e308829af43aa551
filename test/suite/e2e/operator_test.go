package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// `pannier agent stop` returns when the agent's process has ended. Without -plugins all other processes keep
// running and are adopted by the next agent. With -plugins only the mounts are left.
func TestAgentStop(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	before := bridgePlugin(t, h)
	running := h.Processes()

	out := h.Run("agent", "stop")
	for _, want := range []string{
		"the agent is stopped", "1 workload keeps running, with all that is mounted",
		"plugins and drivers keep running",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the stop does not say %q:\n%s", want, out)
		}
	}
	agentIsGone(h, t)
	if got := h.Processes(); !slices.Equal(got, running) {
		t.Errorf("processes %v run, want %v", got, running)
	}
	h.Refused(5, []string{"no agent at"}, "agent", "stop")

	h.Start()
	if now := bridgePlugin(t, h); now.GetPid() != before.GetPid() {
		t.Errorf("the plugin has pid %d, had %d", now.GetPid(), before.GetPid())
	}
	out = h.Run("agent", "stop", "-plugins")
	for _, want := range []string{
		"1 workload keeps running", "plugins, and the drivers that the agent ran, are stopped",
		"FUSE",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the stop does not say %q:\n%s", want, out)
		}
	}
	agentIsGone(h, t)
	if got := h.Processes(); len(got) != 0 {
		t.Errorf("processes %v are left", got)
	}
	if len(h.Mounts()) == 0 {
		t.Error("the workload's mounts are gone")
	}
	h.Start()
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}

// agentIsGone checks that the agent has ended. The test may get its exit status a moment later.
func agentIsGone(h *testhost.Host, t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/" + strconv.Itoa(h.PID()) + "/exe"); err == nil {
		t.Error("the agent still runs")
	}
	h.AwaitEnd()
}

// An operator verifies a plugin's binary, swaps it in, rolls it back, and pins one.
func TestOperatorsPlugins(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	first := bridgePlugin(t, h)
	dir := h.Path("new")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	good, bad := bridgeVariant(t, h, dir, "csi-bridge", 0, "a later build"), bridgeVariant(t, h, dir, "broken", 4096, "")
	if out := h.Run("plugin", "verify", good); !strings.Contains(out, "storage.v1") {
		t.Errorf("verified:\n%s", out)
	}
	h.Refused(4, []string{"verify " + bad}, "plugin", "verify", bad)
	if now := bridgePlugin(t, h); now.GetPid() != first.GetPid() || len(now.GetSwaps()) != 0 {
		t.Errorf("a verification changed the plugin: %v", now)
	}
	h.Refused(4, []string{"nothing to swap to"}, "plugin", "swap", "csi-bridge")
	h.Refused(4, []string{"no earlier version to go back to"}, "plugin", "rollback", "csi-bridge")

	if err := os.Rename(good, filepath.Join(h.PluginDir, "csi-bridge")); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the new binary serves", func() error {
		if bridgePlugin(t, h).GetSha256() == first.GetSha256() {
			return errors.New("the old one does")
		}
		return nil
	})
	second := bridgePlugin(t, h)
	h.Run("plugin", "rollback", "csi-bridge")
	if now := bridgePlugin(t, h); now.GetSha256() != first.GetSha256() || now.GetRefused()[second.GetSha256()] == "" {
		t.Errorf("rolled back: %v", now)
	}
	h.Run("plugin", "swap", "csi-bridge")
	h.Run("plugin", "pin", "csi-bridge", first.GetSha256()[:12])
	h.Kill()
	h.Start()
	if now := bridgePlugin(t, h); now.GetSha256() != first.GetSha256() || now.GetPinned() != first.GetSha256() {
		t.Errorf("the pin did not survive the agent: %v", now)
	}
	h.Refused(4, []string{"is pinned", "pannier plugin unpin"}, "plugin", "rollback", "csi-bridge")
	h.Run("plugin", "unpin", "csi-bridge")
	if now := bridgePlugin(t, h); now.GetSha256() != second.GetSha256() {
		t.Errorf("unpinned: %v", now)
	}
	if lines := strings.Count(h.Run("plugin", "history", "csi-bridge", "-o", "json"), "\n"); lines != 5 {
		t.Errorf("%d swaps, want 5:\n%s", lines, h.Run("plugin", "history", "csi-bridge"))
	}
	if out := h.Run("plugin", "logs", "csi-bridge"); !strings.Contains(out, "INFO") {
		t.Errorf("the plugin's log:\n%s", out)
	}
	h.Refused(3, []string{"nobody"}, "plugin", "logs", "nobody")
}

// A csi-bridge that fails to publish volumes gets a part of the calls: it is ended by itself, and no workload fails. A
// good one serves once it is promoted.
func TestCanary(t *testing.T) {
	t.Parallel()
	d := drivers[0]
	h := testhost.New(t, d.block(t))
	h.Start()
	volume(h, d, "data", "single-node-writer", "")
	spec := workload(h, "w", "data", "")
	first := bridgePlugin(t, h)
	h.Run("plugin", "pin", "csi-bridge")
	install := func(file string) {
		t.Helper()
		if err := os.Rename(file, filepath.Join(h.PluginDir, "csi-bridge")); err != nil {
			t.Fatal(err)
		}
	}
	good := bridgeVariant(t, h, h.Dir, "csi-bridge.good", 0, "a later build")
	data, err := os.ReadFile(testbin.BuildDir(t, "../../../plugins/csi-bridge/testdata/failing"))
	if err == nil {
		err = os.WriteFile(h.Path("csi-bridge.bad"), data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	install(h.Path("csi-bridge.bad"))
	if out := h.Run("plugin", "swap", "-canary", "50%", "csi-bridge"); !strings.Contains(out, "gets 50% of the calls") {
		t.Errorf("a canary:\n%s", out)
	}
	var now *hostv1.Plugin
	h.Eventually("the end of the canary", func() error {
		h.Run("workload", "run", spec, "--", "true")
		if now = bridgePlugin(t, h); now.GetCanary() != nil {
			return errors.New("it still gets calls")
		}
		return nil
	})
	last := now.GetSwaps()[len(now.GetSwaps())-1]
	if now.GetPid() != first.GetPid() || last.GetCanaryPercent() != 50 ||
		!strings.Contains(last.GetError(), "of Publish failed") {
		t.Errorf("after a bad canary: %v", now)
	}
	if out := h.Run("events", "-recent", "100"); !strings.Contains(out, "canary-ended") {
		t.Errorf("events:\n%s", out)
	}

	install(good)
	h.Run("plugin", "swap", "-canary", "50%", "csi-bridge")
	h.Eventually("calls of the canary", func() error {
		h.Run("workload", "run", spec, "--", "true")
		if c := bridgePlugin(t, h).GetCanary(); c.GetCalls() == 0 || c.GetServingCalls() == 0 || c.GetFailedCalls() != 0 {
			return fmt.Errorf("it is %v", c)
		}
		return nil
	})
	canary := bridgePlugin(t, h).GetCanary()
	h.Run("plugin", "promote", "csi-bridge")
	if now = bridgePlugin(t, h); now.GetPid() != canary.GetPid() || now.GetPinned() != canary.GetGeneration().GetSha256() {
		t.Errorf("promoted: %v", now)
	}
	h.Run("workload", "run", spec, "--", "true")
	h.NothingInUse()
}

// bridgePlugin returns csi-bridge from the agent's status.
func bridgePlugin(t *testing.T, h *testhost.Host) *hostv1.Plugin {
	t.Helper()
	p := &hostv1.Plugin{}
	if err := protojson.Unmarshal([]byte(h.Run("plugin", "status", "csi-bridge", "-o", "json")), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// bridgeVariant writes a copy of csi-bridge with something appended, or only its first bytes.
func bridgeVariant(t *testing.T, h *testhost.Host, dir, name string, first int, more string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.PluginDir, "csi-bridge"))
	if err != nil {
		t.Fatal(err)
	}
	if first > 0 {
		data = data[:first]
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, append(data, more...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A host that is alone is drained as docs/operations says, and after a restore the claim of a workload that has ended
// since the snapshot is released.
func TestRestoreAndDrainOfAHostThatIsAlone(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	h.Run("operator", "snapshot", "save", h.Path("ledger.snapshot"))

	h.Refused(4, []string{"the ledger has 1 claim,", "node drain"}, "operator", "snapshot", "restore", h.Path("ledger.snapshot"))
	h.Run("node", "drain", "-enable", "a")
	h.NothingInUse()
	h.Run("node", "drain", "-wait", "a")
	h.Refused(4, []string{"drain"}, "workload", "start", h.Path("w.hcl"))
	h.Run("operator", "snapshot", "restore", h.Path("ledger.snapshot"))
	if got, err := h.Status(); err != nil || got.GetVolumes() != 1 {
		t.Errorf("after the restore there are %d volumes (%v)", got.GetVolumes(), err)
	}
	h.NothingInUse() // the snapshot's claim is released
	h.Run("node", "drain", "-disable", "a")
	h.AwaitDrivers()
	h.Eventually("a workload starts again", func() error {
		if r := h.Try("workload", "run", h.Path("w.hcl"), "--", "true"); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
	h.NothingInUse()
}
