package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// longLeases makes an unreachable node count as disconnected soon, but keep its volumes.
const longLeases = `
heartbeat_ttl = "5s"
stop_after    = "5m"
stop_margin   = "2m"
`

// TestNodes runs the operations of workloads and operators on the nodes of a cluster. The volumes are in rack
// R1 and cannot be reached from node-2. Their controllers are on two hosts that do not lead.
func TestNodes(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{
		Servers: 3, Nodes: 2, ServerConfig: longLeases, Config: quickVotes,
		Topology: func(host string) string {
			if host == "node-2" {
				return "rack=R2"
			}
			return "rack=R1"
		},
	})
	for _, name := range []string{"server-1", "server-3", "node-2"} {
		rewrite(t, c.Host(name), `csi_driver "shared" {`, "csi_driver \"shared\" {\n  type = \"node\"")
	}
	launch(c.Hosts...)
	lead(c, "server-1")
	n := nodes{c, c.Host("server-1"), c.Host("server-2"), c.Host("server-3"), c.Host("node-1"), c.Host("node-2")}
	c.Stage(t, "controllers take turns, and one takes over from another", n.controllers)
	c.Stage(t, "a volume is used where it can be reached, and grows there", n.places)
	c.Stage(t, "a workload is moved to another node", n.move)
	c.Stage(t, "workloads come one after the other", n.after)
	c.Stage(t, "a query waits for a change", n.waiting)
	c.Stage(t, "a stream tells of changes", n.watching)
	c.Stage(t, "a server that is cut off answers stale queries", n.stale)
	c.Stage(t, "nodes are asked through others, also one that is cut off", n.asking)
	c.Stage(t, "a command whose answer is lost is done once", n.once)
	c.Stage(t, "a node takes no workloads", n.eligibility)
	c.Stage(t, "a node is drained", n.drain)
	c.Stage(t, "a node is lost, and another one gets its name", n.lost)
}

// nodes are the hosts of TestNodes.
type nodes struct {
	c                  *testcluster.Cluster
	s1, s2, s3, n1, n2 *testhost.Host
}

// controllers attaches volumes while the leader has no controller of its own. A host with a controller is
// killed in the middle of its call.
func (n nodes) controllers(t *testing.T) {
	ids := []string{"spread-1", "spread-2", "spread-3", "spread-4"}
	for _, id := range ids {
		n.c.Volume(n.s3, id, "single-node-writer")
	}
	start(n.c, n.s1, "spread", ids...)
	by := map[string]bool{}
	for _, id := range ids {
		by[attachedBy(t, n.c, id)] = true
	}
	if len(by) != 2 || !by[n.s2.Name] || !by[n.n1.Name] {
		t.Errorf("the volumes were attached by the controllers on %v", by)
	}
	n.s1.Run("workload", "stop", "spread")

	n.c.Volume(n.s3, "flight", "single-node-writer")
	release := n.c.Hold(t)
	ended := begin(t, n.s3, "workload", "start", n.c.Workload(n.s3, "flight", "flight"))
	asked := held(t, n.c)
	other := n.n1
	if asked == n.n1 {
		other = n.s2
	}
	crash(t, asked)
	release()
	if err := outcome(t, ended); err != nil {
		t.Errorf("the start of a workload whose volume was being attached by %s: %v", asked.Name, err)
	}
	if by := attachedBy(t, n.c, "flight"); by != other.Name {
		t.Errorf("the volume was attached by the controller on %s, not on %s", by, other.Name)
	}
	launch(asked)
	lead(n.c, n.s1.Name)
	n.s3.Run("workload", "stop", "flight")
	n.n2.AwaitFree("flight")
}

// attachedBy returns the host whose controller attached a volume last.
func attachedBy(t *testing.T, c *testcluster.Cluster, volume string) string {
	t.Helper()
	for _, d := range slices.Backward(driverLog(t, c, volume)) {
		if d.what == "attach" {
			return d.where
		}
	}
	t.Fatalf("volume %s was never attached", volume)
	return ""
}

// places uses volumes on nodes in two racks.
func (n nodes) places(t *testing.T) {
	n.c.Volume(n.s3, "near", "single-node-writer")
	n.n2.Refused(4, []string{"near", "rack=R1", "node-2", "rack=R2"}, "workload", "start",
		n.c.Workload(n.n2, "far", "near"))
	n.n2.AwaitFree("near")

	n.s3.Run("volume", "create", n.s3.Write("there.volume.hcl", `
id           = "there"
type         = "csi"
plugin_id    = "shared"
capacity_min = "1MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
topology_request {
  required {
    topology {
      segments {
        rack = "R2"
      }
    }
  }
}
`))
	n.n1.Refused(4, []string{"there", "rack=R2", "node-1", "rack=R1"}, "workload", "start",
		n.c.Workload(n.n1, "there", "there"))
	n.c.AwaitStarted(n.n2, "there", "there")
	n.n2.Run("workload", "stop", "there")

	start(n.c, n.n1, "near", "near")
	n.s3.Run("volume", "expand", "near", "3MiB")
	if got := n.n2.Volume("near").GetCapacity(); got != 3<<20 {
		t.Errorf("the volume has %d bytes", got)
	}
	log := driverLog(t, n.c, "near")
	if last := log[len(log)-1]; last.node != n.n1.Name || last.what != "expand" {
		t.Errorf("the last operation on the volume was %v", last)
	}
	n.n1.Run("workload", "stop", "near")
}

// after starts workloads on two nodes that wait for workloads on the other node to end.
func (n nodes) after(t *testing.T) {
	n.c.Volume(n.s2, "baton", "single-node-writer")
	spec := func(on *testhost.Host, id, key string, others ...string) string {
		return on.Write(id+".workload.hcl", fmt.Sprintf(`
workload %q {
  %s = ["%s"]
  volume "baton" {
    source      = "baton"
    destination = "/srv/baton"
  }
}
`, id, key, strings.Join(others, `", "`)))
	}
	waits := func(on *testhost.Host, id string, others ...string) {
		t.Helper()
		on.Eventually(fmt.Sprintf("%s waits for %q", id, others), func() error {
			resp, err := on.Client().Workloads.GetWorkload(testhost.Soon(t), &hostv1.GetWorkloadRequest{Id: id})
			if err != nil {
				return err
			}
			if w := resp.GetWorkload(); !slices.Equal(w.GetWaitsFor(), others) {
				return fmt.Errorf("it is %s and waits for %q", w.GetState(), w.GetWaitsFor())
			}
			return nil
		})
	}
	start(n.c, n.n1, "one", "baton")
	second := begin(t, n.s3, "workload", "start", spec(n.s3, "two", "after", "one"))
	waits(n.s3, "two", "one")
	given := begin(t, n.s3, "workload", "start", spec(n.s3, "three", "after", "one", "four"))
	waits(n.s3, "three", "one")
	n.n1.Refused(4, []string{"wait for one another", `workload "four" waits for workload "three" waits for workload "four"`}, "workload", "start",
		spec(n.n1, "four", "replaces", "three"))
	n.s3.Run("workload", "stop", "three")
	if err := outcome(t, given); err == nil || !strings.Contains(err.Error(), "given up") {
		t.Errorf("a start that was stopped while it waited: %v", err)
	}
	n.s2.Eventually("the abandoned workload is gone", func() error {
		on, err := n.s2.Node(n.s3.Name)
		if err != nil {
			return err
		}
		if len(on.GetWorkloads()) != 1 || on.GetWorkloads()[0].GetId() != "two" ||
			on.GetWorkloads()[0].GetStatus() != "waiting" {
			return fmt.Errorf("%s has %v", n.s3.Name, on.GetWorkloads())
		}
		return nil
	})
	lead(n.c, n.s2.Name) // the new leader reports waiting workloads
	n.n1.Run("workload", "stop", "one")
	if err := outcome(t, second); err != nil {
		t.Errorf("a workload that came after another one: %v", err)
	}
	n.n1.Run("workload", "start", spec(n.n1, "five", "replaces", "two"))
	if out := n.s3.Run("workload", "status", "two"); !strings.Contains(out,
		`replaced by workload "five" on node "node-1"`) {
		t.Errorf("the status of what was replaced is\n%s", out)
	}
	if by := n.s3.Holder("baton"); by.GetWorkload() != "five" || by.GetNode() != n.n1.Name {
		t.Errorf("the volume is held by %v", by)
	}
	n.n1.Run("workload", "stop", "five")
}

// eligibility keeps new workloads off a node on which one runs.
func (n nodes) eligibility(t *testing.T) {
	n.c.Volume(n.s2, "stays", "single-node-writer")
	n.c.Volume(n.s2, "comes", "single-node-writer")
	start(n.c, n.n1, "stays", "stays")
	n.s3.Run("node", "eligibility", "-disable", n.n1.Name)
	n.n1.Refused(4, []string{n.n1.Name, "pannier node eligibility -enable node-1"}, "workload", "start",
		n.c.Workload(n.n1, "comes", "comes"))
	n.s2.Holder("stays") // the running one continues
	n.n2.Run("node", "eligibility", "-enable", n.n1.Name)
	start(n.c, n.n1, "comes", "comes")
}

// drain empties node-1, on which two workloads run. While unmounting is blocked the drain
// continues, and the driver stays.
func (n nodes) drain(t *testing.T) {
	release := n.c.Hold(t)
	n.s3.Run("node", "drain", "-enable", n.n1.Name)
	if on := held(t, n.c); on != n.n1 {
		t.Errorf("volumes are taken from %s", on.Name)
	}
	now, err := n.s2.Node(n.n1.Name)
	if err != nil {
		t.Fatal(err)
	}
	if now.GetNode().GetDrain() == nil || now.GetNode().GetDrain().GetDoneAt() != nil || len(now.GetWorkloads()) == 0 ||
		!now.GetNode().GetDrivers()[0].GetHealthy() {
		t.Errorf("while its volumes are mounted, the node is %v", now)
	}
	n.s2.Holder("stays") // until its last volume is released
	n.n1.Refused(4, []string{n.n1.Name, "drained"}, "workload", "start", n.c.Workload(n.n1, "late", "near"))
	release()
	n.n2.Run("node", "drain", "-wait", n.n1.Name)
	n.s3.AwaitFree("comes", "stays")
	var order []string
	for _, d := range driverLog(t, n.c, "") {
		if d.what == "unpublish" && d.node == n.n1.Name {
			order = append(order, d.volume)
		}
	}
	if last := order[len(order)-2:]; !strings.HasPrefix(last[0], "default-comes-") ||
		!strings.HasPrefix(last[1], "default-stays-") {
		t.Errorf("volumes were not unpublished in the reverse order of the starts: %q", order)
	}
	n.s3.Eventually("the driver was stopped", func() error {
		now, err := n.s3.Node(n.n1.Name)
		if err != nil {
			return err
		}
		if d := now.GetNode().GetDrivers()[0]; d.GetHealthy() || !strings.Contains(d.GetMessage(), "drained") {
			return fmt.Errorf("it is %v", d)
		}
		return nil
	})
	if left := n.n1.VolumeMounts(); len(left) > 0 {
		t.Errorf("the node has the mounts %q", left)
	}
	n.n1.Run("node", "drain", "-disable", n.n1.Name)
	n.n1.AwaitDrivers()
	n.c.AwaitStarted(n.n1, "late", "near")
	n.n1.Run("workload", "stop", "late")
	n.n1.NothingInUse()
}

// lost kills node-2, purges it, lets it come back, and sets it up again.
func (n nodes) lost(t *testing.T) {
	start(n.c, n.n2, "lost", "there")
	n.s3.Refused(4, []string{n.n2.Name, "node drain -enable"}, "node", "purge", n.n2.Name)
	crash(t, n.n2)
	n.s3.AwaitNode(n.n2.Name, "disconnected")
	n.s3.Refused(4, []string{n.n2.Name, `"lost"`, "node purge -force node-2"}, "node", "purge", n.n2.Name)
	n.s3.Run("node", "purge", "-force", "-yes", n.n2.Name)
	n.s3.Refused(3, []string{n.n2.Name}, "node", "status", n.n2.Name)
	n.s3.AwaitFree("there")
	launch(n.n2)
	n.s3.AwaitNode(n.n2.Name, "ready")
	n.n2.NothingInUse()

	crash(t, n.n2)
	if err := os.RemoveAll(n.n2.Path("data")); err != nil {
		t.Fatal(err)
	}
	n.n2.Begin()
	n.n2.Eventually("its status says what to do", func() error {
		s, err := n.n2.Status()
		if err == nil && !strings.Contains(s.GetMessage(), "pannier node purge node-2") {
			err = errors.New(s.GetMessage())
		}
		return err
	})
	n.s3.AwaitNode(n.n2.Name, "disconnected")
	n.s3.Run("node", "purge", n.n2.Name)
	n.n2.AwaitReady()
	n.n2.AwaitDrivers()
	n.c.AwaitStarted(n.n2, "anew", "there")
	n.n2.Run("workload", "stop", "anew")
}
