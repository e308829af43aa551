package faults

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestTwin disconnects a host whose workload writes, and starts another machine with the same name and
// certificate and an empty data directory. While the first machine has its lease, the second one must not
// release its claims. It must not replace it as a server either.
func TestTwin(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"server-3", "node-1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 1, ServerConfig: patient})
			taker, cut := c.Host("server-1"), c.Host(name)
			watchMounts(t, c)
			c.Volume(taker, "data", "single-node-writer")
			p := run(t, c, cut, "first", "data")
			twin := c.Twin(cut)
			c.Net.Part(cut.Net)
			twin.Begin()

			spec := c.Workload(taker, "second", "data")
			refused := 0
			twin.Eventually("the other machine learns why it is refused", func() error {
				if r := taker.Try("workload", "start", spec); r.Code == 0 {
					t.Fatalf("server-1 got the volume while %s has its lease", p.who)
				}
				if log := twin.LogTail(); !strings.Contains(log, "known with another secret") {
					return errors.New("it is not")
				}
				if refused++; refused < 50 { // give the other machine time to do harm
					return errors.New("it may be let in yet")
				}
				return nil
			})
			if name == "server-3" {
				notAmongServers(t, taker, twin)
			}
			twin.Kill()
			c.Net.Heal()
			taker.AwaitNode(name, "ready")
			cut.Run("workload", "stop", "first")
			p.awaitEnd()
			c.AwaitStarted(taker, "second", "data")
			taker.Run("workload", "stop", "second")
		})
	}
}

// notAmongServers checks that no server has replicated the ledger to a twin of another server.
func notAmongServers(t *testing.T, through, twin *testhost.Host) {
	t.Helper()
	text, err := os.ReadFile(twin.Path("agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "this server has caught up") {
		t.Error("the other machine votes in place of server-3")
	}
	if out := through.Run("operator", "raft", "list-peers"); !strings.Contains(out, "server-3") {
		t.Errorf("server-3 is no longer a server: %s", out)
	}
}

// TestForcedDetachOfANodeThatLives takes a volume by force from an unreachable node, and reconnects the node
// while its lease is valid. It stops its workload before it gets another one.
func TestForcedDetachOfANodeThatLives(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 1, Nodes: 2, ServerConfig: patient})
	server, n1, n2 := c.Host("server-1"), c.Host("node-1"), c.Host("node-2")
	for h, how := range map[*testhost.Host][]string{
		n1: {"volume", "detach", "-force", "-yes", "data-node-1", "node-1"}, n2: {"node", "purge", "-force", "-yes", "node-2"},
	} {
		t.Run(how[1]+" of "+h.Name, func(t *testing.T) {
			volume := "data-" + h.Name
			c.Volume(server, volume, "single-node-writer")
			p := run(t, c, h, "first-"+h.Name, volume)
			c.Net.Part(h.Net)
			server.AwaitNode(h.Name, "disconnected")
			if r := server.Try(how...); r.Code != 0 {
				t.Fatalf("%v: %s%s", how, r.Stdout, r.Stderr)
			}
			server.AwaitFree(volume)
			c.Net.Heal()
			p.awaitEnd() // long before its lease would end
			noneRuns(t, h)
			server.AwaitNode(h.Name, "ready")
			c.AwaitStarted(h, "again-"+h.Name, volume)
			h.Run("workload", "stop", "again-"+h.Name)
		})
	}
}
