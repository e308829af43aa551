package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// TestNoInodes takes the inodes of the disk of the data directory. The host refuses what is new while there are a few,
// and continues to release volumes; it survives without any, and recovers when there are some again.
func TestNoInodes(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	disk := h.NewDisk(t, 512<<20)
	h.Start()
	for _, id := range []string{"a", "b", "c"} {
		h.Run("volume", "create", h.Write(id+".hcl", fmt.Sprintf(`
id           = %q
type         = "csi"
plugin_id    = "local"
capacity_min = "16MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`, id)))
	}
	workload := func(id, volume string) string {
		return h.Write(id+".workload.hcl", fmt.Sprintf(
			"workload %q {\n  volume \"data\" {\n    source      = %q\n    destination = \"/srv/data\"\n  }\n}\n", id, volume))
	}
	h.Run("workload", "start", workload("one", "a"))
	h.Run("workload", "start", workload("two", "b"))

	disk.LeaveInodes(40)
	h.Refused(1, []string{"nearly full", "inodes left"}, "workload", "start", workload("three", "c"))
	h.Run("workload", "stop", "one")

	disk.LeaveInodes(0)
	h.Refused(1, []string{"nearly full", "inodes left"}, "workload", "start", workload("three", "c"))
	plugin := filepath.Join(h.PluginDir, "csi-bridge")
	program, err := os.ReadFile(plugin)
	if err == nil {
		err = testhost.WriteProgram(plugin+".new", append(program, "another version"...))
	}
	if err == nil {
		err = os.Rename(plugin+".new", plugin)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the plugin's copy is refused", func() error {
		if out := h.Run("plugin", "status", "csi-bridge"); !strings.Contains(out, "inodes left") {
			return errors.New(out)
		}
		return nil
	})
	if claims := h.Claims("b"); len(claims) != 1 {
		t.Errorf("the claims of b: %v", claims)
	}
	h.Stop()
	if out, err := h.Command("agent", "-config", h.Path("agent.hcl")).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "inodes left") {
		t.Errorf("an agent without inodes ended with %v: %s", err, out)
	}

	disk.LeaveInodes(1 << 40)
	h.Start()
	h.Run("workload", "stop", "two")
	h.Run("workload", "start", workload("three", "c"))
	h.Run("workload", "stop", "three")
	if s, err := h.Status(); err != nil || s.GetClaims() != 0 || len(s.GetLeftovers()) != 0 {
		t.Errorf("at the end: %v, %v", s, err)
	}
}
