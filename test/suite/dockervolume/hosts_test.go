package dockervolume

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/docker"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// writer writes its name and the machine's uptime into the volume.
const writer = `while :; do read -r up idle </proc/uptime; echo "$0 $up" >>/data/log; sleep 0.1; done`

// TestTwoHosts has two hosts with a dockerd each, and one volume. The second host is refused while the first has it,
// and gets it once the first, which is cut off, has stopped its container: nobody writes at the same time.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	c, hosts := twoHosts(t, twoEngines(t, "one volume for containers of two hosts"), "5s")
	server, one, two := c.Hosts[0], hosts[0], hosts[1]
	for _, r := range hosts {
		r.docker(t, "volume", "create", "-d", "pannier", "-o", "size=1MiB", "data")
		t.Cleanup(func() { _, _ = r.Daemon.Try("rm", "--force", "w1") })
	}
	run := []string{"run", "--detach", "--name", "w1", "-v", "data:/data", image, "sh", "-c", writer}
	one.docker(t, append(run, "node-1")...)
	log := logOf(t, c, server)
	one.Eventually("node-1 writes", func() error { return wrote(log, "node-1", 2) })
	two.refused(t, []string{`workload "docker-volume.data.node-1" on node "node-1"`}, append(run, "node-2")...)
	two.docker(t, "rm", "w1")

	c.Net.Part(one.Net)
	two.Eventually("node-2 gets the volume", func() error {
		out, err := two.Daemon.Try(append(run, "node-2")...)
		if err != nil {
			_, _ = two.Daemon.Try("rm", "--force", "w1")
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	two.Eventually("node-2 writes", func() error { return wrote(log, "node-2", 5) })
	first, second := times(log, "node-1"), times(log, "node-2")
	if last, begun := first[len(first)-1], second[0]; begun <= last {
		t.Errorf("node-1 wrote at %.2f s, and node-2 at %.2f s already", last, begun)
	}
	one.Eventually("the container on node-1 has ended", func() error {
		if out, err := one.Daemon.Try("inspect", "--format", "{{.State.Running}}", "w1"); err != nil || out != "false\n" {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	c.Net.Heal()
	server.AwaitNode("node-1", "ready")
	if held := claims(t, server, "data"); len(held) != 1 || held[0].GetNode() != "node-2" {
		t.Errorf("the claims are %v", held)
	}
	two.docker(t, "rm", "--force", "w1")
	two.awaitFree(t, "data")
	one.docker(t, "rm", "--force", "w1")
	one.docker(t, "run", "--rm", "-v", "data:/data", image, "test", "-e", "/data/log")
	one.awaitFree(t, "data")
}

// twoEngines starts two dockerds, which have the image. Their namespaces must outlive the hosts.
func twoEngines(t *testing.T, notCovered string) []*docker.Daemon {
	t.Helper()
	daemons := make([]*docker.Daemon, 2)
	for n := range daemons {
		daemons[n] = docker.Start(t, notCovered)
		daemons[n].Image(t, image, `CMD ["sleep", "1000"]`)
	}
	return daemons
}

// twoHosts makes a cluster of a server and a host for each engine.
func twoHosts(t *testing.T, daemons []*docker.Daemon, timeout string) (c *testcluster.Cluster, hosts []*rig) {
	t.Helper()
	c = testcluster.New(t, testcluster.Options{
		Servers: 1, Nodes: len(daemons), Plugins: []string{plugin},
		ServerConfig: "heartbeat_ttl = \"2s\"\nstop_after = \"6s\"\nstop_margin = \"5s\"",
	})
	for n, h := range c.Hosts[1:] {
		d := daemons[n]
		h.Namespace = d.PID()
		config, err := os.ReadFile(h.Path("agent.hcl"))
		if err != nil {
			t.Fatal(err)
		}
		h.Write("agent.hcl", string(config)+pluginBlock(t, "shared", timeout))
		hosts = append(hosts, &rig{h, d})
	}
	for _, h := range c.Hosts {
		h.Begin()
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
	return c, hosts
}

// logOf is the writers' file in the storage.
func logOf(t *testing.T, c *testcluster.Cluster, h *testhost.Host) string {
	t.Helper()
	res, err := h.Client().Volumes.GetVolume(testhost.Soon(t), &hostv1.GetVolumeRequest{Namespace: space, Id: "data"})
	if err != nil {
		t.Fatal(err)
	}
	return c.Volumes + "/" + res.GetVolume().GetSpec().GetExternalId() + "/data/log"
}

// times are the uptimes at which a host wrote into the log, in seconds.
func times(log, by string) (at []float64) {
	raw, _ := os.ReadFile(log)
	for line := range strings.Lines(string(raw)) {
		who, when, _ := strings.Cut(strings.TrimSpace(line), " ")
		if up, err := strconv.ParseFloat(when, 64); err == nil && who == by {
			at = append(at, up)
		}
	}
	return at
}

// wrote checks that a host has written n times.
func wrote(log, by string, n int) error {
	if at := times(log, by); len(at) < n {
		return fmt.Errorf("it wrote at %v", at)
	}
	return nil
}
