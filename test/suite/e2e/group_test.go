package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A group snapshot of a running workload's volumes is of one moment, and volumes can be made of its snapshots.
func TestGroupSnapshotOfAWorkload(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	for _, id := range []string{"log", "table"} {
		volume(h, drivers[0], id, "single-node-writer", "")
	}
	spec := h.Write("db.hcl", fmt.Sprintf(`
workload "db" {
  volume "log" {
    source      = "log"
    destination = %q
  }
  volume "table" {
    source      = "table"
    destination = %q
  }
}
`, h.Path("mnt/log"), h.Path("mnt/table")))
	// Each number is in the log before it is in the table.
	script := `i=0; while [ ! -e %[1]s/stop ]; do i=$((i+1)); for d in log table; do
echo $i > %[1]s/$d/tmp && mv %[1]s/$d/tmp %[1]s/$d/n || exit 1; done; done`
	running := h.Command("workload", "run", spec, "--", "sh", "-c", fmt.Sprintf(script, h.Path("mnt")))
	check.NoError(t, os.MkdirAll(h.Path("mnt"), 0o755))
	check.NoError(t, running.Start())
	h.Eventually("the workload writes", func() error {
		r := h.Try("volume", "status", "table")
		if !strings.Contains(r.Stdout, "taken") {
			return fmt.Errorf("not yet: %s", r.Stderr)
		}
		return nil
	})
	var created struct {
		Group struct {
			GroupID   string `json:"group_id"`
			Snapshots []struct {
				SnapshotID string `json:"snapshot_id"`
				Volume     string
			}
		}
	}
	out := h.Run("volume", "snapshot", "group", "create", "-o", "json", "now", "-workload", "db")
	check.NoError(t, json.Unmarshal([]byte(out), &created))
	check.NoError(t, os.WriteFile(filepath.Join(h.Path("mnt"), "stop"), nil, 0o600))
	check.NoError(t, running.Wait())
	g := created.Group
	if len(g.Snapshots) != 2 {
		t.Fatalf("got %s", out)
	}
	numbers := map[string]int{}
	for _, s := range g.Snapshots {
		id := s.Volume + "-then"
		volume(h, drivers[0], id, "single-node-writer", `snapshot_id = "`+s.SnapshotID+`"`)
		text := h.Run("workload", "run", workload(h, "r", id, ""), "--", "sh", "-c", "cat "+h.Path("mnt")+"/n || echo 0")
		n, err := strconv.Atoi(strings.TrimSpace(text))
		check.NoError(t, err)
		numbers[s.Volume] = n
	}
	if d := numbers["log"] - numbers["table"]; d < 0 || d > 1 {
		t.Errorf("the snapshots are of several moments: %v", numbers)
	}
	if got := h.Run("volume", "snapshot", "group", "status", "local", g.GroupID); strings.Count(got, "snap-") != 2 {
		t.Errorf("the group is shown as\n%s", got)
	}
	h.Refused(2, []string{g.GroupID}, "volume", "snapshot", "delete", "local", g.Snapshots[0].SnapshotID)
	h.Run("volume", "snapshot", "group", "delete", "local", g.GroupID)
	h.Run("volume", "snapshot", "group", "delete", "local", g.GroupID)
	if got := h.Run("volume", "snapshot", "list", "-driver", "local"); strings.Contains(got, "snap-") {
		t.Errorf("snapshots are left:\n%s", got)
	}
	h.NothingInUse()
}
