package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// A volume's id may have characters that mean something to a shell, in a path, in HCL or to a terminal, as volumes of
// Nomad's per_alloc do. It is what it says everywhere, and harmless where something is made of it.
func TestUnusualIDs(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		for n, id := range []string{"data[0]", `$(touch);"'*?%s+2f\`} {
			hcl := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id)
			spec := strings.Replace(volumeSpec(d, "ID", "single-node-writer", "file-system", ""), "ID", hcl, 1)
			h.Run("volume", "validate", h.Write("v.hcl", spec))
			h.Run("volume", "create", h.Write("v.hcl", spec))
			used := strings.Replace(`
workload "w" {
  volume "data" {
    source      = "ID"
    destination = "/data"
  }
}
`, "ID", hcl, 1)
			started := h.Run("workload", "start", "-o", "systemd", h.Write("w.hcl", used))
			line, _, _ := strings.Cut(started, ":/data")
			_, path, _ := strings.Cut(line, "=")
			if want := []string{"data+5b0+5d", "+24+28touch"}[n]; !strings.Contains(path, "/default/"+want) {
				t.Errorf("%s is mounted at %s, want %s", id, path, want)
			}
			if err := os.WriteFile(path+"/file", []byte("text"), 0o600); err != nil {
				t.Fatal(err)
			}
			h.Run("workload", "start", "-o", "docker", h.Path("w.hcl"))
			h.Refused(4, []string{"pannier volume explain ", `w`}, "volume", "delete", id)
			for _, args := range [][]string{
				{"volume", "list"}, {"volume", "status", id}, {"volume", "explain", id}, {"workload", "status", "w"},
			} {
				if out := h.Run(args...); !strings.Contains(out, id) && !strings.Contains(out, strconv.Quote(id)) {
					t.Errorf("%v does not name it: %s", args, out)
				}
			}
			h.Run("volume", "snapshot", "create", id, "before")
			h.Kill()
			h.Start()
			if text, err := os.ReadFile(path + "/file"); err != nil || string(text) != "text" {
				t.Errorf("after a restart of the agent: %q, %v", text, err)
			}
			if out := h.Run("__complete", "volume", "status", ""); !strings.Contains(out, id) {
				t.Errorf("it is not completed: %s", out)
			}
			h.Run("volume", "detach", id, "a")
			h.Run("workload", "stop", "w")
			for _, line := range strings.Split(h.Run("volume", "snapshot", "list", "-driver", d.id), "\n")[1:] {
				if snapshot, _, ok := strings.Cut(line, " "); ok {
					h.Run("volume", "snapshot", "delete", d.id, snapshot)
				}
			}
			h.Run("volume", "delete", id)
		}
		h.NothingInUse()
	})
}
