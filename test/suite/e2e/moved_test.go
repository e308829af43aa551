package e2e

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// Somebody moves the data directory while a workload uses it. The agent says what to move back, whichever of the two
// paths it is started with, and after that everything is as before.
func TestDataDirectoryIsMoved(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, driver{id: "local"}, "v", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "moves", "v", ""))
	h.Kill()
	data, moved := h.Path("data"), h.Path("moved")
	must(t, os.Rename(data, moved))

	text, err := os.ReadFile(h.Path("agent.hcl"))
	must(t, err)
	h.Write("agent.hcl", strings.ReplaceAll(string(text), data, moved))
	h.Begin()
	h.AwaitEnd()
	if log := h.LogTail(); !strings.Contains(log, "mv -T "+moved+" "+data) || !strings.Contains(log, `workload "moves"`) {
		t.Errorf("with the new path the agent says\n%s", log)
	}
	h.Write("agent.hcl", string(text))
	h.Start()
	h.Refused(3, []string{"no such workload", moved, "mv -T " + moved + " " + data}, "workload", "stop", "moves")
	h.Stop()
	must(t, errors.Join(os.Rename(data, h.Path("new")), os.Rename(moved, data)))
	h.Start()
	h.Run("workload", "stop", "moves")
	h.NothingInUse()
}
