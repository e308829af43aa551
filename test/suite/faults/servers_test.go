package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestServers kills all servers at once, and then makes the disk of one server slow.
func TestServers(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 2, ServerConfig: patient})
	n1, n2 := c.Host("node-1"), c.Host("node-2")
	c.Stage(t, "workloads go on while no server is there", func(t *testing.T) { serversAway(t, c, n1, n2) })
	c.Stage(t, "claims go on while the disk of a server is slow", func(t *testing.T) {
		leader := c.Leader()
		follower := slices.DeleteFunc(c.Servers(), func(h *testhost.Host) bool { return h == leader })[0]
		c.Volume(n1, "slow", "single-node-writer")
		for _, slow := range []*testhost.Host{follower, leader} {
			slowDisk(t, c, slow, n1, n2)
		}
	})
}

// serversAway kills all servers, and restarts the agent of a node while they are down. Nothing is unmounted,
// and every claim stays the same.
func serversAway(t *testing.T, c *testcluster.Cluster, n1, n2 *testhost.Host) {
	t.Helper()
	was := map[string]uint64{}
	for _, on := range []*testhost.Host{n1, n2} {
		volume, workload := "v-"+on.Name, "w-"+on.Name
		c.Volume(on, volume, "single-node-writer")
		on.Run("workload", "start", c.Workload(on, workload, volume))
		was[volume] = on.Holder(volume).GetIndex()
	}

	for _, s := range c.Servers() {
		s.Kill()
	}
	n1.Kill()
	n1.Begin() // it starts while all servers are down
	n1.Eventually("the node's agent answers", func() error { _, err := n1.Status(); return err })
	for _, s := range c.Servers() {
		s.Begin()
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
	}
	for _, on := range []*testhost.Host{n1, n2} {
		volume, workload := "v-"+on.Name, "w-"+on.Name
		if now := n2.Holder(volume).GetIndex(); now != was[volume] {
			t.Errorf("the claim of %s changed from %d to %d", volume, was[volume], now)
		}
		// A restarted agent reports an unknown state until it has compared its journal with the
		// ledger.
		on.Eventually("workload "+workload+" runs", func() error {
			if out := on.Run("workload", "status", workload); !strings.Contains(out, "running") {
				return fmt.Errorf("its status: %s", out)
			}
			return nil
		})
	}
	for _, d := range deeds(t, c) {
		if d.what == "unpublish" || d.what == "detach" {
			t.Errorf("a volume was unpublished or detached: %v", d)
		}
	}

	// Everything works again.
	n1.Run("workload", "stop", "w-node-1")
	c.AwaitStarted(n2, "again", "v-node-1")
	n2.Run("workload", "stop", "again")
	n2.Run("workload", "stop", "w-node-2")
	n2.AwaitFree("v-node-1", "v-node-2")
}

// slowDisk moves a volume back and forth between two nodes while one server is limited to ten disk writes a
// second. That server catches up afterwards.
func slowDisk(t *testing.T, c *testcluster.Cluster, slow, n1, n2 *testhost.Host) {
	t.Helper()
	undo, err := slow.SlowDisk(t, 10)
	if err != nil {
		t.Skipf("disks cannot be made slow here; not covered: claims with a slow disk: %v", err)
	}
	for range 2 {
		for _, on := range []*testhost.Host{n1, n2} {
			c.AwaitStarted(on, "slow-"+on.Name, "slow")
			on.Run("workload", "stop", "slow-"+on.Name)
		}
	}
	undo()
	last := "seen-by-" + slow.Name
	c.Volume(n1, last, "single-node-writer")
	slow.Eventually(slow.Name+" has caught up", func() error {
		if r := slow.Try("volume", "status", "-stale", last); r.Code != 0 {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
}
