package e2e

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// faulty starts a host with a driver whose faults the test scripts.
func faulty(t *testing.T) (*testhost.Host, *faultydriver.Driver, driver) {
	t.Helper()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})
	h := testhost.New(t, fmt.Sprintf(`
csi_driver "faulty" {
  endpoint = %q
}
`, d.Endpoint()))
	h.Start()
	return h, d, driver{id: "faulty"}
}

// The plugin dies while the driver works on a call of a start or of a stop. The host retries the call, and
// neither the caller nor the workload notices.
func TestPluginDiesInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	for rpc, command := range map[string]string{
		"ControllerPublishVolume": "start", "NodeStageVolume": "start", "NodePublishVolume": "start",
		"NodeUnpublishVolume": "stop", "NodeUnstageVolume": "stop", "ControllerUnpublishVolume": "stop",
	} {
		t.Run(rpc, func(t *testing.T) {
			t.Parallel()
			h, d, id := faulty(t)
			volume(h, id, "data", "single-node-writer", "")
			spec := workload(h, "w", "data", "")
			if command == "stop" {
				h.Run("workload", "start", spec)
			}
			d.Script(rpc, faultydriver.Hang())
			cmd := h.Command("workload", command, spec)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			d.AwaitCalls(rpc, 1)
			s, err := h.Status()
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(int(s.GetPlugins()[0].GetPid()), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("workload %s failed: %v\n%s", command, err, h.LogTail())
			}
			if n := len(d.Calls(rpc)); n != 2 {
				t.Errorf("it was called %d times, want 2", n)
			}
			if command == "start" {
				h.Run("workload", "stop", spec)
			}
			h.NothingInUse()
			if at := d.AttachedTo(externalID(t, h, "data")); len(at) > 0 {
				t.Errorf("the volume is still attached to %q", at)
			}
		})
	}
}

// A volume that was expanded while it was not mounted is expanded on the node for its next user
// (CSI spec, node_expansion_required).
func TestExpandedWhileUnused(t *testing.T) {
	t.Parallel()
	h, d, id := faulty(t)
	volume(h, id, "data", "single-node-writer", "")
	spec := workload(h, "w", "data", "")
	h.Run("workload", "run", spec, "--", "true")
	if n := len(d.Calls("NodeExpandVolume")); n != 0 {
		t.Errorf("a volume that never grew was expanded %d times", n)
	}
	h.Run("volume", "expand", "data", "128MiB")
	h.Run("workload", "run", spec, "--", "true")
	if n := len(d.Calls("NodeExpandVolume")); n != 1 {
		t.Errorf("the volume was expanded %d times on the node, want once", n)
	}
	h.NothingInUse()
}
