package stalls

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// patient lets a node run for longer than a case lasts.
const patient = `
heartbeat_ttl = "2s"
stop_after    = "10m"
stop_margin   = "4m"
`

// world is the cluster of a case, and the hosts' parts in it.
type world struct {
	t                      *testing.T
	c                      *testcluster.Cluster
	leader, follower, node *testhost.Host
}

// A peerStall is a fault between hosts, or of one that others wait for.
type peerStall struct {
	name string
	// begin makes the fault; end, unless it is nil, ends it.
	begin func(w world) (end func())
	// waits: the node gets no volume meanwhile.
	waits bool
}

func oneWay(name string, waits bool, ends func(w world) (from, to *testhost.Host)) peerStall {
	return peerStall{name: name, waits: waits, begin: func(w world) func() {
		from, to := ends(w)
		w.c.Net.Set(from.Net, to.Net, testnet.Link{Cut: true})
		return w.c.Net.Heal
	}}
}

func parted(name string, waits bool, one func(w world) *testhost.Host) peerStall {
	return peerStall{name: name, waits: waits, begin: func(w world) func() {
		w.c.Net.Part(one(w).Net)
		return w.c.Net.Heal
	}}
}

func stopped(name string, pid func(w world) int) peerStall {
	return peerStall{name: name, begin: func(w world) func() {
		of := pid(w)
		check.Stop(w.t, of)
		return func() { _ = unix.Kill(of, unix.SIGCONT) } // it may have been killed
	}}
}

func slowed(name string, one func(w world) *testhost.Host) peerStall {
	return peerStall{name: name, begin: func(w world) func() {
		undo, err := one(w).SlowDisk(w.t, 5)
		if err != nil {
			w.t.Skipf("disks cannot be made slow here (%v); not covered: %s", err, name)
		}
		return undo
	}}
}

// fenceOf returns the process that fences a host's workloads.
func fenceOf(t *testing.T, h *testhost.Host) (pid int) {
	t.Helper()
	h.Eventually("a process fences", func() error {
		all, err := procfs.Processes()
		if err != nil {
			return err
		}
		at := slices.IndexFunc(all, func(p procfs.Stat) bool {
			line, _ := os.ReadFile(procfs.Dir(p.PID) + "/cmdline")
			args := bytes.Split(line, []byte{0})
			return len(args) > 1 && string(args[1]) == "fence" && strings.Contains(string(line), filepath.Clean(h.Dir)+"/")
		})
		if at < 0 {
			return fmt.Errorf("no process")
		}
		pid = all[at].PID
		return nil
	})
	return pid
}

func peers() []peerStall {
	type host = *testhost.Host
	return []peerStall{
		oneWay("the leader does not reach a node", true, func(w world) (host, host) { return w.leader, w.node }),
		oneWay("a node does not reach the leader", true, func(w world) (host, host) { return w.node, w.leader }),
		oneWay("the leader does not reach a follower", false, func(w world) (host, host) { return w.leader, w.follower }),
		oneWay("a follower does not reach the leader", false, func(w world) (host, host) { return w.follower, w.leader }),
		oneWay("a node does not reach a follower", false, func(w world) (host, host) { return w.node, w.follower }),
		{name: "every link loses packets and is late", begin: func(w world) func() {
			w.c.Net.SetAll(testnet.Link{Loss: 0.02, Delay: 20 * time.Millisecond})
			return w.c.Net.Heal
		}},
		parted("the leader is cut off", false, func(w world) host { return w.leader }),
		parted("a follower is cut off", false, func(w world) host { return w.follower }),
		parted("a node is cut off", true, func(w world) host { return w.node }),
		stopped("the leader is stopped", func(w world) int { return w.leader.PID() }),
		stopped("a follower is stopped", func(w world) int { return w.follower.PID() }),
		stopped("a node's fence is stopped", func(w world) int { return fenceOf(w.t, w.node) }),
		slowed("the leader's disk is slow", func(w world) host { return w.leader }),
		slowed("a follower's disk is slow", func(w world) host { return w.follower }),
		{name: "a node's fence is killed", begin: func(w world) func() {
			check.NoError(w.t, unix.Kill(fenceOf(w.t, w.node), unix.SIGKILL))
			return nil
		}},
	}
}

// works gives a node the volume "probe", and takes it away.
func works(c *testcluster.Cluster, node *testhost.Host) {
	c.AwaitStarted(node, "probe", "probe")
	node.Eventually("it is stopped", func() error {
		if got := node.Try("workload", "stop", "probe"); got.Code != 0 && got.Code != 3 {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})
	node.AwaitFree("probe")
}

// TestCluster stalls what hosts of a cluster rely on: each other.
func TestCluster(t *testing.T) {
	t.Parallel()
	var n tally
	t.Cleanup(func() { fmt.Println(&n) })
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 1, ServerConfig: patient})
	node := c.Host("node-1")
	c.Volume(node, "held", "single-node-writer")
	c.Volume(node, "probe", "single-node-writer")
	node.Run("workload", "start", c.Workload(node, "holds", "held"))
	held := node.Holder("held").GetIndex()
	for _, s := range peers() {
		c.Stage(t, s.name, func(t *testing.T) {
			n.tried.Add(1)
			leader := c.Leader()
			follower := slices.DeleteFunc(c.Servers(), func(h *testhost.Host) bool { return h == leader })[0]
			pids := map[*testhost.Host]int{}
			for _, h := range c.Hosts {
				pids[h] = h.PID()
			}
			end := s.begin(world{t, c, leader, follower, node})
			if end == nil {
				end = func() {}
			}
			end = sync.OnceFunc(end)
			t.Cleanup(end)
			node.Eventually("the node answers", func() error { _, err := node.Status(); return err })
			if !s.waits {
				works(c, node)
			}
			end()
			for _, h := range c.Hosts {
				h.AwaitReady()
			}
			works(c, node)
			if now := node.Holder("held"); now.GetIndex() != held || now.GetWorkload() != "holds" {
				t.Errorf("the claim of before has become %v", now)
			}
			for h, pid := range pids {
				if !h.Alive() || h.PID() != pid {
					n.along.Add(1)
					t.Errorf("it took the agent of %s along\n%s", h.Name, h.LogTail())
				}
			}
		})
	}
}
