package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// smallDisk is the size of the file system of node-2's data directory.
const smallDisk = 256 << 20

// inUse picks one of hosts on which workloads write to a volume that another host could want. It waits a while for one.
func (n *nemesis) inUse(hosts []*testhost.Host, number int) *testhost.Host {
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(beat) {
		busy := slices.DeleteFunc(slices.Clone(hosts), func(h *testhost.Host) bool { return n.load.users(h.Name) == 0 })
		if len(busy) > 0 {
			return busy[number%len(busy)]
		}
	}
	return hosts[number%len(hosts)]
}

// processes lists those of a host that have a word in their command line.
func (n *nemesis) processes(h *testhost.Host, word string) (found []int) {
	for _, pid := range h.Processes() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		words := bytes.Split(line, []byte{0})
		if err == nil && slices.ContainsFunc(words[:min(2, len(words))], func(w []byte) bool {
			return bytes.Equal(w[bytes.LastIndexByte(w, '/')+1:], []byte(word))
		}) {
			found = append(found, pid)
		}
	}
	return found
}

func (n *nemesis) signalAll(pids []int, sig unix.Signal) {
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			n.t.Errorf("signal process %d: %v", pid, err)
		}
	}
}

// suspend suspends processes. The agent may kill them before they continue.
func (n *nemesis) suspend(pids []int) (end func()) {
	n.signalAll(pids, unix.SIGSTOP)
	return func() { n.signalAll(pids, unix.SIGCONT) }
}

// killBoth kills an agent with its fence, and starts the agent at once, as a service manager does. The next fence must
// be there before the claims are released. If the machine is too busy for that, the writers are ended.
func (n *nemesis) killBoth(h *testhost.Host) {
	fence := n.processes(h, "fence")
	n.signalAll(fence, unix.SIGKILL)
	h.Kill()
	h.Begin()
	n.load.aim(h)
	const late = 700 * time.Millisecond // the last heartbeat was before the kill, and the fence has to be told
	for end := time.Now().Add(n.soonest - late); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		now := n.processes(h, "fence")
		if slices.ContainsFunc(now, func(pid int) bool { return !slices.Contains(fence, pid) }) {
			return
		}
	}
	n.t.Logf("%s has no fence again in time: its writers are ended", h.Name)
	n.load.vouch(h.Name)
}

// lose kills a node with all that it runs, except the fence, and releases its claims by force, as an operator does who
// knows that it is down. end starts it again.
func (n *nemesis) lose(node *testhost.Host, force func(through *testhost.Host, v *target) error) (end func()) {
	node.Kill()
	n.load.vouch(node.Name)
	n.load.aim(node)
	through := n.leader()
	for _, v := range n.load.volumes {
		_ = force(through, v) // it may have no claim there, or there may be no leader
	}
	return node.Begin
}

// another cuts a node off, and starts another machine with its name and certificate. end turns that off.
func (n *nemesis) another(node *testhost.Host) (end func()) {
	n.load.aim(node)
	if n.twin == nil || n.twin.Name != node.Name {
		n.twin = n.c.Twin(node)
	}
	for _, h := range n.c.Hosts {
		if h != node {
			n.c.Net.Set(h.Net, node.Net, testnet.Link{Cut: true})
			n.c.Net.Set(node.Net, h.Net, testnet.Link{Cut: true})
		}
	}
	n.twin.Begin()
	return n.twin.Kill
}
