package chaos

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// nemesis applies the steps of a plan to a cluster.
type nemesis struct {
	t       *testing.T
	c       *testcluster.Cluster
	load    *load
	soonest time.Duration // after which a leader may release the claims of a silent node, and the last one does
	letGo   time.Duration
	disk    *testhost.Disk   // that of the data directory of node-2
	twin    *testhost.Host   // the second machine of that name; nil: there is none yet
	first   []*testhost.Host // the hosts that the cluster began with
	added   *testhost.Host
	stopped map[*testhost.Host]bool // by SIGSTOP
	leave   func(*testhost.Host)    // keeps a host's logs before the host is removed
}

// do applies one step, then undoes its faults.
func (n *nemesis) do(s step) {
	var undo []func()
	for _, f := range s.faults {
		undo = append(undo, n.begin(f))
	}
	defer n.load.aimAtNone()
	time.Sleep(s.lasts)
	for _, u := range slices.Backward(undo) {
		if u != nil {
			u()
		}
	}
	n.c.Net.Heal()
	for _, h := range n.c.Hosts {
		if !h.Alive() && h != n.added {
			n.t.Errorf("the agent of %s has ended by itself\n%s", h.Name, h.LogTail())
			h.Begin()
		}
	}
	time.Sleep(s.calm)
}

// leader is the leading server as far as that can be found out, else any server.
func (n *nemesis) leader() *testhost.Host {
	for _, h := range n.servers() {
		if !h.Alive() || n.stopped[h] {
			continue
		}
		if s, err := h.Status(); err == nil && s.GetLeader() {
			return h
		}
	}
	return n.first[0]
}

func (n *nemesis) servers() []*testhost.Host {
	return slices.DeleteFunc(slices.Clone(n.first),
		func(h *testhost.Host) bool { return !strings.HasPrefix(h.Name, "server-") })
}

func (n *nemesis) nodes() []*testhost.Host {
	return slices.DeleteFunc(slices.Clone(n.first),
		func(h *testhost.Host) bool { return strings.HasPrefix(h.Name, "server-") })
}

// begin starts a fault, and returns the function that ends it; nil: there is nothing to end.
func (n *nemesis) begin(f fault) (end func()) {
	servers, nodes := n.servers(), n.nodes()
	host := sync.OnceValue(func() *testhost.Host { return n.inUse(n.first, f.numbers[0]) })
	node := sync.OnceValue(func() *testhost.Host { return n.inUse(nodes, f.numbers[1]) })
	minority := servers[:1+f.numbers[2]%(len(servers)/2)]
	switch f.name {
	case "cut off the leader":
		leader := n.leader()
		n.load.aim(leader)
		n.c.Net.Part(leader.Net)
	case "cut off some servers":
		n.load.aim(append(slices.Clone(minority), node())...)
		n.c.Net.Part(append(networks(minority), node().Net)...)
	case "cut off a node":
		n.load.aim(node())
		n.c.Net.Part(node().Net)
	case "cut off a node from the servers":
		n.load.aim(node())
		for _, s := range servers {
			n.c.Net.Set(s.Net, node().Net, testnet.Link{Cut: true})
			n.c.Net.Set(node().Net, s.Net, testnet.Link{Cut: true})
		}
	case "nothing leaves a host":
		n.load.aim(host())
		n.links(host(), testnet.Link{Cut: true}, testnet.Link{})
	case "nothing reaches a host":
		n.load.aim(host())
		n.links(host(), testnet.Link{}, testnet.Link{Cut: true})
	case "30 % of the packets are lost":
		n.c.Net.SetAll(testnet.Link{Loss: 0.3})
	case "packets are 200 ms late":
		n.c.Net.SetAll(testnet.Link{Delay: 200 * time.Millisecond})
	case "a host is far away":
		bad := testnet.Link{Loss: 0.1, Delay: 100 * time.Millisecond}
		n.links(host(), bad, bad)
	case "kill the leader":
		return n.kill(n.leader())
	case "kill a host":
		return n.kill(host())
	case "kill the servers":
		return n.kill(servers...)
	case "stop the leader":
		return n.stop(n.leader())
	case "stop a host":
		return n.stop(host())
	case "stop a host for long":
		end := n.stop(host())
		time.Sleep(n.letGo)
		return end
	case "stop a host in bursts":
		n.bursts(host(), f.numbers)
	case "a slow disk":
		return n.slowDisk(host(), f.numbers)
	case "a slow disk of the leader":
		return n.slowDisk(n.leader(), f.numbers)
	case "restart from a snapshot":
		return n.fromSnapshot(servers[f.numbers[3]%len(servers)])
	case "another leader":
		_ = n.try(n.leader(), "operator", "raft", "transfer-leadership") // it may be cut off
	case "the fence is killed":
		n.load.aim(host())
		n.signalAll(n.processes(host(), "fence"), unix.SIGKILL)
	case "the fence is stopped":
		return n.suspend(n.processes(host(), "fence"))
	case "agent and fence are killed":
		n.killBoth(host())
	case "a driver hangs":
		n.load.aim(host())
		return n.suspend(n.processes(host(), "shareddriver"))
	case "a frozen disk":
		n.load.aim(n.c.Host("node-2"))
		return n.disk.Freeze()
	case "a full disk":
		n.load.aim(n.c.Host("node-2"))
		n.disk.Leave(int64(f.numbers[1]%80) << 20)
		return func() { n.disk.Leave(smallDisk) }
	case "a node is lost and detached by force":
		return n.lose(node(), func(through *testhost.Host, v *target) error {
			return n.try(through, "volume", "detach", "-force", "-yes", v.id, node().Name)
		})
	case "a node is lost and purged":
		return n.lose(node(), func(through *testhost.Host, _ *target) error {
			return n.try(through, "node", "purge", "-force", "-yes", node().Name)
		})
	case "a machine of the same name":
		return n.another(node())
	case "a server is added":
		n.added = n.c.Add(fmt.Sprintf("server-%d", len(servers)+1), true)
		n.t.Cleanup(func() { n.leave(n.added) })
		n.added.Begin()
	case "it is removed":
		n.remove()
	default:
		n.t.Fatalf("the plan has a fault that is none: %s", f)
	}
	return nil
}

func networks(of []*testhost.Host) (all []*testnet.Host) {
	for _, h := range of {
		all = append(all, h.Net)
	}
	return all
}

// links sets the links of a host in both directions.
func (n *nemesis) links(h *testhost.Host, out, in testnet.Link) {
	for _, o := range n.c.Hosts {
		if o != h {
			n.c.Net.Set(h.Net, o.Net, out)
			n.c.Net.Set(o.Net, h.Net, in)
		}
	}
}

// kill kills agents with SIGKILL, as the kernel's out-of-memory killer does; end starts them again.
func (n *nemesis) kill(some ...*testhost.Host) (end func()) {
	for _, h := range some {
		h.Kill()
	}
	return func() {
		for _, h := range some {
			h.Begin()
		}
	}
}

// stop suspends an agent's process. Its fence and its workloads run on.
func (n *nemesis) stop(h *testhost.Host) (end func()) {
	n.signal(h, unix.SIGSTOP)
	n.stopped[h] = true
	return func() {
		n.signal(h, unix.SIGCONT)
		delete(n.stopped, h)
	}
}

func (n *nemesis) signal(h *testhost.Host, sig unix.Signal) {
	if err := unix.Kill(h.PID(), sig); err != nil {
		n.t.Errorf("signal the agent of %s: %v", h.Name, err)
	}
}

// bursts suspends an agent repeatedly for 50 to 300 ms.
func (n *nemesis) bursts(h *testhost.Host, numbers [4]int) {
	for k := range 3 + numbers[1]%5 {
		end := n.stop(h)
		time.Sleep(time.Duration(50+(numbers[2]+k*83)%250) * time.Millisecond)
		end()
		time.Sleep(time.Duration(10+(numbers[3]+k*31)%100) * time.Millisecond)
	}
}

// slowDisk limits an agent to 10 to 40 disk writes a second. Where the machine cannot do that, it
// suspends the agent in bursts.
func (n *nemesis) slowDisk(h *testhost.Host, numbers [4]int) (end func()) {
	undo, err := h.SlowDisk(n.t, 10+numbers[1]%30)
	if err == nil {
		return undo
	}
	n.t.Logf("disks cannot be made slow here, the agent is stopped in bursts: %v", err)
	n.bursts(h, numbers)
	return nil
}

// fromSnapshot kills a server and removes its copy of the ledger: it restarts from raft's snapshot
// and the log after it.
func (n *nemesis) fromSnapshot(h *testhost.Host) (end func()) {
	h.Kill()
	if err := os.RemoveAll(h.Path("data/ledger/state")); err != nil {
		n.t.Error(err)
	}
	return h.Begin
}

// try runs a command of the CLI for a bounded time: it waits while there is no leader.
func (n *nemesis) try(h *testhost.Host, args ...string) error {
	cmd := h.Command(args...)
	timer := time.AfterFunc(patience/2, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// remove removes the server that the plan added.
func (n *nemesis) remove() {
	n.added.AwaitReady()
	if r := n.added.Try("agent", "leave"); r.Code != 0 {
		n.t.Errorf("server %s could not leave: %s", n.added.Name, r.Stderr)
		return
	}
	n.added.AwaitEnd()
}

// heal ends all faults, and waits until each agent is ready.
func (n *nemesis) heal() {
	n.c.Net.Heal()
	for h := range n.stopped {
		n.signal(h, unix.SIGCONT)
	}
	for _, h := range n.first {
		if !h.Alive() {
			h.Begin()
		}
		h.AwaitReady()
		h.AwaitDrivers()
	}
}
