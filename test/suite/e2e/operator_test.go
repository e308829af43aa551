package e2e

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
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
		"the agent is stopped", "1 workload was left running, with all that is mounted",
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
		"1 workload was left running", "plugins, and the drivers that the agent ran, are stopped",
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

// bridgePlugin returns csi-bridge from the agent's status.
func bridgePlugin(t *testing.T, h *testhost.Host) *hostv1.Plugin {
	t.Helper()
	p := &hostv1.Plugin{}
	if err := protojson.Unmarshal([]byte(h.Run("plugin", "status", "csi-bridge", "-o", "json")), p); err != nil {
		t.Fatal(err)
	}
	return p
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

	h.Refused(4, []string{`workload "w" on node "a"`, "node drain"}, "operator", "snapshot", "restore", "-yes", h.Path("ledger.snapshot"))
	h.Run("node", "drain", "-enable", "a")
	h.NothingInUse()
	h.Run("node", "drain", "-wait", "a")
	h.Refused(4, []string{"drain"}, "workload", "start", h.Path("w.hcl"))
	h.Run("operator", "snapshot", "restore", "-yes", h.Path("ledger.snapshot"))
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
