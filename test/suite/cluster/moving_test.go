package cluster_test

import (
	"strings"
	"testing"
)

// move moves a workload from host to host, by commands to others. What cannot work stops nothing, and what fails later
// is undone.
func (n nodes) move(t *testing.T) {
	n.c.Volume(n.s3, "moves", "single-node-writer")
	start(n.c, n.n1, "moves", "moves")
	isOn := func(node string, times int) {
		t.Helper()
		if h := n.s1.Holder("moves"); h.GetNode() != node {
			t.Errorf("the volume is held by %v, not on %s", h, node)
		}
		published := 0
		for _, d := range driverLog(t, n.c, "moves") {
			if d.what == "publish" {
				published++
			}
		}
		if published != times {
			t.Errorf("the volume was published %d times, not %d", published, times)
		}
	}
	n.s2.Refused(4, []string{"rack=R1", "rack=R2", `runs on, on node "node-1"`}, "workload", "move", "moves", "-to", "node-2")
	n.n2.Run("node", "eligibility", "-disable", n.s3.Name)
	n.n1.Refused(4, []string{"server-3", "eligib", `runs on, on node "node-1"`}, "workload", "move", "moves", "-to", "server-3")
	n.n2.Run("node", "eligibility", "-enable", n.s3.Name)
	isOn("node-1", 1)

	out := n.n2.Try("workload", "move", "moves", "-to", "server-3")
	for _, text := range []string{`stopped on node "node-1"`, "unpublish moves ... done", `started on node "server-3"`, "publish moves ... done"} {
		if out.Code != 0 || !strings.Contains(out.Stderr, text) {
			t.Errorf("the move has exit code %d and not %q:\n%s", out.Code, text, out.Stderr)
		}
	}
	isOn("server-3", 2)

	release := n.c.Hold(t)
	moved := begin(t, n.n2, "workload", "move", "moves", "-to", "node-1")
	if on := held(t, n.c); on != n.s3 {
		t.Errorf("the volume is taken from %s", on.Name)
	}
	n.s1.Run("node", "eligibility", "-disable", n.n1.Name)
	release()
	if err := outcome(t, moved); err == nil || !strings.Contains(err.Error(), `runs on node "server-3" again`) ||
		!strings.Contains(err.Error(), "node-1") {
		t.Errorf("a move to a node that takes no workloads any more: %v", err)
	}
	n.s1.Run("node", "eligibility", "-enable", n.n1.Name)
	isOn("server-3", 3)
	n.s3.Run("workload", "stop", "moves")

	n.c.Volume(n.s3, "runs", "single-node-writer")
	p := run(t, n.c, n.n1, "runs", "runs")
	n.s2.Refused(4, []string{`run on "node-1": kill `, `then on "server-3": `}, "workload", "move", "runs", "-to", "server-3")
	p.writesOn(t)
	n.n1.Run("workload", "stop", "runs")
	<-p.ended
}
