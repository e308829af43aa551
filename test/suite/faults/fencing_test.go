package faults

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// short configures short times: a disconnected node stops its workloads after 5 s, its fence acts after 6.3
// s, and the leader releases its claims after 9 s.
const short = `
heartbeat_ttl = "2s"
stop_after    = "5s"
stop_margin   = "4s"
`

// TestFencing disconnects one node, stops the agent of a second one and kills that of a third, all with a
// workload that writes. Their volumes move to another node, and no volume is ever mounted on two nodes.
func TestFencing(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 3, ServerConfig: short})
	watchMounts(t, c)
	taker := c.Host("server-1")
	lost := map[string]*testhost.Host{"cut": c.Host("node-1"), "stopped": c.Host("node-2"), "killed": c.Host("node-3")}
	programs := map[string]*program{}

	c.Stage(t, "a node that cannot be reached stops before its volume goes to another", func(t *testing.T) {
		for id, h := range lost {
			c.Volume(taker, id, "single-node-writer")
			programs[id] = run(t, c, h, id, id)
		}
		c.Net.Part(lost["cut"].Net)
		check.Stop(t, lost["stopped"].PID())
		lost["killed"].Kill()
		for id, h := range lost {
			standsWhileDisconnected(t, c, taker, h, id)
		}
		for id := range lost {
			c.AwaitStarted(taker, "takes-"+id, id)
		}
		for id, h := range lost {
			endedBefore(t, programs[id], taken(t, c, taker, id))
			if left := h.VolumeMounts(); len(left) > 0 {
				t.Errorf("%s has the mounts %q although its volume has moved", h.Name, left)
			}
		}
	})

	c.Stage(t, "a reconnected node learns of it, and cleans up", func(t *testing.T) {
		c.Net.Heal()
		check.NoError(t, unix.Kill(lost["stopped"].PID(), unix.SIGCONT))
		lost["killed"].Begin()
		for id, h := range lost {
			taker.AwaitNode(h.Name, "ready")
			programs[id].awaitEnd()
			noneRuns(t, h)
			if got := h.Holder(id).GetWorkload(); got != "takes-"+id {
				t.Errorf("volume %s is held by %s", id, got)
			}
		}
		for id := range lost {
			taker.Run("workload", "stop", "takes-"+id)
		}
		for id, h := range lost { // everything works again
			c.AwaitStarted(h, id+"-again", id)
			h.Run("workload", "stop", id+"-again")
		}
	})

	c.Stage(t, "an operator who vouches for a node does not have to wait", func(t *testing.T) {
		h := lost["cut"]
		p := run(t, c, h, "vouched", "cut")
		c.Net.Part(h.Net)
		standsWhileDisconnected(t, c, taker, h, "cut")
		taker.Run("volume", "detach", "-force", "-yes", "cut", h.Name)
		taker.AwaitFree("cut")
		c.Net.Heal()
		p.awaitEnd()
		noneRuns(t, h)
		taker.AwaitNode(h.Name, "ready")
	})
}

// standsWhileDisconnected waits until the leader has noticed that a node is disconnected, and checks that the
// node keeps its claim until it counts as down.
func standsWhileDisconnected(t *testing.T, c *testcluster.Cluster, through, h *testhost.Host, volume string) {
	t.Helper()
	through.Eventually("node "+h.Name+" counts as disconnected", func() error {
		n, err := through.Node(h.Name)
		if err != nil {
			return err
		}
		switch n.GetNode().GetStatus() {
		case "ready":
			return errors.New("it is ready")
		case "disconnected":
			if claims := n.GetClaims(); len(claims) != 1 || claims[0].GetState() != "taken" {
				t.Errorf("node %s is disconnected, and has the claims %v", h.Name, claims)
			}
		}
		return nil
	})
}

// taken returns the time at which a volume was published on its present host.
func taken(t *testing.T, c *testcluster.Cluster, on *testhost.Host, volume string) int64 {
	t.Helper()
	name, all := on.Volume(volume).GetSpec().GetExternalId(), deeds(t, c)
	at := slices.IndexFunc(all, func(d deed) bool { return d.what == "publish" && d.volume == name && d.node == on.Name })
	if at < 0 {
		t.Fatalf("volume %s was not published on %s: %v", volume, on.Name, all)
	}
	return all[at].at
}

// endedBefore checks that a program wrote nothing after the given time.
func endedBefore(t *testing.T, p *program, moment int64) {
	t.Helper()
	all := p.wrote()
	if last := all[len(all)-1]; last > moment {
		t.Errorf("%s wrote until %d, and its volume was published elsewhere at %d", p.who, last, moment)
	}
}

// noneRuns waits until no workload runs on a host, and nothing of earlier ones is left.
func noneRuns(t *testing.T, h *testhost.Host) {
	t.Helper()
	h.Eventually("nothing of a workload is left on "+h.Name, func() error {
		s, err := h.Status()
		if err != nil {
			return err
		}
		for state, n := range s.GetWorkloads() {
			if n > 0 && state != "stopped" && state != "failed" {
				return fmt.Errorf("%d workloads are %s", n, state)
			}
		}
		if left := h.VolumeMounts(); len(left) > 0 {
			return fmt.Errorf("mounts: %s", strings.Join(left, ", "))
		}
		return nil
	})
}
