package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/testcluster"
	"github.com/pannier/pannier/test/testhost"
)

// patient lets nodes go on for much longer without servers than a slow machine takes to
// start them.
const patient = `
heartbeat_ttl = "1m"
stop_after    = "10m"
stop_margin   = "1m"
`

// TestServersAway kills all servers at once, and the agent of a node while they are away.
// The workloads go on: nothing is unmounted, and no claim is another one afterwards.
func TestServersAway(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 2, ServerConfig: patient})
	n1, n2 := c.Host("node-1"), c.Host("node-2")
	was := map[string]uint64{}
	for _, on := range []*testhost.Host{n1, n2} {
		volume, workload := "v-"+on.Name, "w-"+on.Name
		c.Volume(on, volume, "single-node-writer")
		on.Run("workload", "start", c.Workload(on, workload, volume))
		was[volume] = index(t, c, on, volume)
	}

	for _, s := range c.Servers() {
		s.Kill()
	}
	n1.Kill()
	n1.Begin() // it is there before any server
	n1.Eventually("the node's agent answers", func() error { _, err := n1.Status(); return err })
	for _, s := range c.Servers() {
		s.Begin()
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
	}
	for _, on := range []*testhost.Host{n1, n2} {
		volume, workload := "v-"+on.Name, "w-"+on.Name
		if now := index(t, c, n2, volume); now != was[volume] {
			t.Errorf("the claim of %s was %d, and is %d", volume, was[volume], now)
		}
		if out := on.Run("workload", "status", workload); !strings.Contains(out, "running") && !strings.Contains(out, "ready") {
			t.Errorf("workload %s:\n%s", workload, out)
		}
	}
	if log := driverLog(t, c); strings.Contains(log, "unpublish") || strings.Contains(log, "detach") {
		t.Errorf("volumes were taken down:\n%s", log)
	}

	// And all goes on.
	n1.Run("workload", "stop", "w-node-1")
	n2.Run("workload", "start", c.Workload(n2, "again", "v-node-1"))
	n2.Run("workload", "stop", "again")
	n2.Run("workload", "stop", "w-node-2")
	n2.Eventually("no claims are left", func() error {
		if left := len(c.Claims(n2, "v-node-1")) + len(c.Claims(n2, "v-node-2")); left > 0 {
			return fmt.Errorf("%d claims", left)
		}
		return nil
	})
}

// index is the fencing token of the only claim of a volume.
func index(t *testing.T, c *testcluster.Cluster, through *testhost.Host, volume string) uint64 {
	t.Helper()
	claims := c.Claims(through, volume)
	if len(claims) != 1 || claims[0].GetState() != "taken" {
		t.Fatalf("the claims of %s: %v", volume, claims)
	}
	return claims[0].GetIndex()
}

// driverLog is what the drivers of all hosts did, a line each: when, node, what, volume, where.
func driverLog(t *testing.T, c *testcluster.Cluster) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(c.Volumes, ".log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(log)
}
