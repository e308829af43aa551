package cluster_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestLocalVolumes has volumes on the disks of three hosts, whose drivers do not see one another's.
func TestLocalVolumes(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{
		Servers: 3, ServerConfig: longLeases, Config: quickVotes + testhost.LocalDriver(t),
	})
	s1, s2, s3 := c.Host("server-1"), c.Host("server-2"), c.Host("server-3")
	lead(c, "server-1")
	images := func(h *testhost.Host) int {
		found, err := filepath.Glob(h.Path("data/volumes/volumes/*/*.img"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	expect := func(t *testing.T, want ...int) {
		t.Helper()
		if got := []int{images(s1), images(s2), images(s3)}; !slices.Equal(got, want) {
			t.Fatalf("the hosts have %v images, not %v", got, want)
		}
	}
	spec := func(h *testhost.Host, id, more string) string {
		return h.Write(id+".hcl", `
id        = "`+id+`"
type      = "csi"
plugin_id = "local"
`+more+`
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`)
	}
	const size = `capacity_min = "16MiB"`
	ids := []string{"v1", "v2", "v3", "v4", "v5", "v6"}

	c.Stage(t, "a volume is made on the caller's node, or on the named one", func(t *testing.T) {
		for _, id := range ids {
			s2.Run("volume", "create", spec(s2, id, size))
		}
		expect(t, 0, 6, 0)
		s2.Run("volume", "create", "-node", "server-3", spec(s2, "far", size))
		expect(t, 0, 6, 1)
		for id, node := range map[string]string{"v1": "server-2", "far": "server-3"} {
			if at := s1.Volume(id).GetAccessibleNodes(); !slices.Equal(at, []string{node}) {
				t.Errorf("volume %s is shown on %v", id, at)
			}
		}
		s1.Refused(4, []string{"far", "server-1"}, "volume", "create", "-node", "server-1", spec(s1, "far", size))
		s1.Refused(2, []string{"none", "nowhere"}, "volume", "create", "-node", "nowhere", spec(s1, "none", size))
	})

	c.Stage(t, "a start elsewhere is refused", func(t *testing.T) {
		s1.Refused(4, []string{"v1", "node=server-2", `node "server-1"`, "pannier volume status v1"},
			"workload", "start", c.Workload(s1, "v1", "v1"))
		s2.Run("workload", "start", c.Workload(s2, "v1", "v1"))
		s2.Run("workload", "stop", "v1")
	})

	c.Stage(t, "a snapshot and its copies are where the volume is", func(t *testing.T) {
		s1.Run("volume", "snapshot", "create", "far", "of-far")
		s1.Run("volume", "create", spec(s1, "copy", `snapshot_id = "of-far"`))
		expect(t, 0, 6, 2)
		s1.Run("volume", "delete", "-yes", "copy")
		s1.Run("volume", "snapshot", "delete", "local", "of-far")
		if left, _ := filepath.Glob(s3.Path("data/volumes/snapshots/*")); len(left) > 0 {
			t.Errorf("snapshots are left: %v", left)
		}
	})

	c.Stage(t, "only the host that has a volume deletes it", func(t *testing.T) {
		s3.Stop()
		if r := s1.Try("volume", "delete", "-yes", "far"); r.Code == 0 {
			t.Errorf("deleted without its host: %s", r.Stdout)
		}
		expect(t, 0, 6, 1)
		for _, id := range ids {
			s1.Run("volume", "delete", "-yes", id)
		}
		expect(t, 0, 0, 1)
		s3.Start()
		s3.AwaitDrivers()
		s1.Run("volume", "delete", "-yes", "far")
		expect(t, 0, 0, 0)
	})
}
