package dockervolume

import (
	"fmt"
	"strings"
	"testing"
)

// TestSwarm has a swarm of two dockerds with an agent each, and a service of two replicas with one volume. One runs,
// and the other one waits on the other node. When the first one's node is drained, the second one has its data, and
// they never write at the same time.
func TestSwarm(t *testing.T) {
	t.Parallel()
	c, hosts := twoHosts(t, twoEngines(t, "services of a swarm"), "5s")
	join := []string{"swarm", "init"}
	nodes := map[string]*rig{}
	for n, r := range hosts {
		// Swarm's ports are fixed. The addresses are those of the test's own network.
		address := fmt.Sprintf("127.0.2.%d", n+1)
		r.docker(t, "volume", "ls") // swarm asks only for drivers that were used or listed
		r.docker(t, append(join, "--advertise-addr", address, "--listen-addr", address+":2377")...)
		t.Cleanup(func() { _, _ = r.Daemon.Try("swarm", "leave", "--force") })
		nodes[strings.TrimSpace(r.docker(t, "info", "--format", "{{.Swarm.NodeID}}"))] = r
		token := strings.TrimSpace(hosts[0].docker(t, "swarm", "join-token", "--quiet", "worker"))
		join = []string{"swarm", "join", "--token", token, "127.0.2.1:2377"}
	}
	manager := hosts[0]
	// Swarm's own load balancing needs a kernel with ipvs, the network of the host needs nothing.
	manager.docker(t, "service", "create", "--detach", "--no-resolve-image", "--network", "host", "--name", "w",
		"--replicas", "2", "--replicas-max-per-node", "1", "--restart-delay", "1s",
		"--env", "NODE={{.Node.ID}}", "--stop-signal", "SIGKILL",
		"--mount", "type=volume,source=data,target=/data,volume-driver=pannier,volume-opt=size=1MiB",
		image, "sh", "-c", strings.ReplaceAll(writer, "$0", "$NODE"))
	var first, second string
	var log string
	manager.Eventually("one replica writes, and the other one is refused", func() error {
		tasks := manager.docker(t, "service", "ps", "--no-trunc", "--format", "{{.CurrentState}} {{.Error}}", "w")
		refused := strings.Contains(tasks, `VolumeDriver.Mount: volume "data" could not be had`)
		if !strings.Contains(tasks, "Running") || !refused {
			return fmt.Errorf("tasks: %s", tasks)
		}
		held := claims(t, c.Hosts[0], "data")
		if len(held) != 1 {
			return fmt.Errorf("claims: %v", held)
		}
		log = logOf(t, c, c.Hosts[0])
		for id, r := range nodes {
			if r.Name == held[0].GetNode() {
				first = id
			} else {
				second = id
			}
		}
		return wrote(log, first, 2)
	})
	if at := times(log, second); len(at) > 0 {
		t.Fatalf("the second replica wrote at %v", at)
	}
	manager.docker(t, "node", "update", "--availability", "drain", first)
	manager.Eventually("the second replica writes", func() error { return wrote(log, second, 5) })
	before, after := times(log, first), times(log, second)
	if last, begun := before[len(before)-1], after[0]; begun <= last {
		t.Errorf("the first replica wrote at %.2f s, and the second one at %.2f s already", last, begun)
	}
	manager.docker(t, "service", "rm", "w")
	manager.awaitFree(t, "data")
}
