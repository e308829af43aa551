package clusterbench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/usage"
)

const (
	nodes = 1000
	// wave is the number of nodes that join at the same time, and every the minimum interval between waves.
	wave, every = 5, 100 * time.Millisecond
	// joining bounds the time until all have joined, unless the run is a full one.
	joining = 90 * time.Second
	// busy is the share of the cores that this process may have used before the next wave. A member that has
	// to wait for a core counts as failed, which causes more gossip.
	busy = 0.75
	// behind is how many other members each member may not know yet, on average, when the next wave joins.
	behind = 20
	// enrolling is the number of nodes that add their records to the ledger concurrently.
	enrolling = 8
	// steady is for how long the resource usage is measured once nothing happens any more.
	steady = 30 * time.Second
	// healing limits the time in which some members may be unknown to others in a full run. A thousand members
	// exchange their full state every three minutes, each with one other member. Other runs give up earlier.
	healing, shortHealing = 5 * time.Minute, 30 * time.Second
)

// swarm is the agents that gossip in this process.
type swarm struct {
	all []*discovery.Discovery
}

// measureNodes lets 1,000 agents join from the benchmark's process: real serf with default timings, and for
// each node a certificate, a record with a driver's fingerprint, and heartbeats.
func measureNodes(b *testing.B, r *table.Section) {
	s := form(b, "")
	leader := s.leader(b)
	// The memory of 1,000 hosts is collected less often, up to 8 GiB.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(8 << 30))
	begun := s.use(b)
	all, last, ok := s.gather(b, nodes)
	joined := s.use(b).since(begun)
	r.Add(table.Row{
		What: "joined without a limit on the rate: each knows of all others but one, on average, after", Unit: "s",
		Value: joined.at.Seconds(), AtMost: 60, Unfinished: !ok,
	})
	if !ok {
		r.Add(
			table.Row{What: "nodes that had joined", Value: float64(len(all.all))},
			table.Row{What: "CPU time of the nodes until then, all in one process", Value: joined.here.Seconds(), Unit: "s"},
		)
		return
	}
	whole := make(chan bool, 1)
	go func() { whole <- all.heal() }()

	before := s.use(b)
	check.NoError(b, parallel(nodes, enrolling, func(i int) error { return s.enrol(b, nodeName(i)) }))
	enrolled := s.use(b).since(before)

	known := <-whole
	if known {
		s.awaitMembers(b)
	} else if measure.Full() {
		b.Fatalf("of %d nodes and %d servers, %d are not known somewhere, %v after the last joined", nodes, servers,
			all.missing(), healing)
	}
	healed := s.use(b).since(begun)
	before = s.use(b)
	time.Sleep(steady)
	idle := s.use(b).since(before)
	if now := s.leader(b); now != leader {
		b.Fatalf("%s leads, no more %s", now.Name, leader.Name)
	}
	r.Add(
		table.Row{What: "the last five of them", Value: last.Seconds(), Unit: "s"},
		table.Row{What: "CPU time of the three servers for that", Value: joined.servers.Seconds(), Unit: "s"},
		table.Row{What: "CPU time of the nodes, all in one process", Value: joined.here.Seconds(), Unit: "s"},
		table.Row{
			What: "every node's serf knows of every other one and the servers, after", Value: healed.at.Seconds(),
			Unit: "s", Unfinished: !known,
		},
		table.Row{
			What: "nodes registered in the ledger, with a driver each, 8 at a time, in", Value: enrolled.at.Seconds(),
			Unit: "s",
		},
		table.Row{What: "CPU time of the three servers for that", Value: enrolled.servers.Seconds(), Unit: "s"},
		table.Row{What: "nodes that somebody takes for failed, half a minute later", Value: float64(all.missing())},
		table.Row{What: "CPU of the three servers together in it, of one core", Value: idle.share(idle.servers), Unit: "%"},
		table.Row{What: "CPU of the nodes together in it, of one core", Value: idle.share(idle.here), Unit: "%", AtMost: 30},
		table.Row{What: "resident memory of the leader", Value: usage.Memory(b, leader.PID(), "VmRSS"), Unit: "MiB"},
		table.Row{
			What:  "resident memory of the leader, not mapped from files",
			Value: usage.Memory(b, leader.PID(), "RssAnon"), Unit: "MiB",
		},
	)
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// discover begins the gossip of a node.
func discover(n int, join string) (*discovery.Discovery, error) {
	return discovery.Open(discovery.Config{
		Self: discovery.Self{
			Name: nodeName(n), Role: discovery.Node, Datacenter: "dc1", Version: "benchmark",
		},
		Key: gossipKey, Bind: "127.0.0.1", RetryJoin: []string{join}, Memberlist: patient(), Logger: hclog.NewNullLogger(),
	})
}

// gather lets nodes join the servers in waves, as fast as the machine can. last is the time from the last wave until
// each of them knows all others except one, on average. If time runs out, fewer have joined.
func (s *formed) gather(b *testing.B, number int) (all *swarm, last time.Duration, ok bool) {
	b.Helper()
	all = &swarm{}
	b.Cleanup(all.close)
	cores := busy * float64(runtime.NumCPU())
	began := time.Now()
	late := func() bool { return !measure.Full() && time.Since(began) > joining }
	var at time.Time
	for len(all.all) < number {
		for used := usage.CPU(b, os.Getpid()); len(all.all) > 0 && !late(); {
			time.Sleep(every / 10)
			if gone := time.Since(at); gone >= every && (usage.CPU(b, os.Getpid())-used).Seconds() <= cores*gone.Seconds() {
				break
			}
		}
		if late() || !all.await(b, behind) {
			return all, 0, false
		}
		at = time.Now()
		for range wave {
			m := check.Must(discover(len(all.all), s.all[len(all.all)%len(s.all)].gossip()))(b)
			all.all = append(all.all, m)
		}
	}
	ok = all.await(b, 1)
	return all, time.Since(at), ok
}

// close ends all members. It may be called again.
func (all *swarm) close() {
	var wg sync.WaitGroup
	for _, m := range all.all {
		wg.Go(func() { _ = m.Close() })
	}
	wg.Wait()
	all.all = nil
}

// await waits until all nodes have joined and each of them knows all others except some, on average. It reports
// whether that was so within a minute; in a full run it has to be.
func (all *swarm) await(b *testing.B, some int) bool {
	b.Helper()
	for late := time.Now().Add(patience); ; {
		looked := time.Now()
		if all.alone() == 0 && all.missing() <= some*len(all.all) {
			return true
		}
		rest(looked)
		if time.Now().After(late) {
			if !measure.Full() {
				return false
			}
			b.Fatalf(
				"of %d nodes with %d others each, %d have met nobody, and %d others are not known somewhere or taken for failed, a minute after the last ones came",
				len(all.all), len(all.all)+servers-1, all.alone(), all.missing())
		}
	}
}

// rest pauses after a look at all members of all nodes, of which there are a million, so that looking takes a
// twentieth of a core at most.
func rest(looked time.Time) { time.Sleep(max(50*time.Millisecond, 20*time.Since(looked))) }

// patient returns gossip's default timings with longer ones for probes. 1,000 nodes on the cores of one host
// may answer more slowly than nodes on separate hosts, and must not count as failed. The limits are
// memberlist's own for distant hosts.
func patient() *memberlist.Config {
	c, distant := memberlist.DefaultLANConfig(), memberlist.DefaultWANConfig()
	c.ProbeInterval, c.ProbeTimeout = distant.ProbeInterval, distant.ProbeTimeout
	return c
}

// missing counts how often a node does not know another agent, or considers it failed.
func (all *swarm) missing() (n int) {
	for _, m := range all.all {
		n += len(all.all) + servers - m.Alive()
	}
	return n
}

// alone counts the nodes that know no other.
func (all *swarm) alone() (n int) {
	for _, m := range all.all {
		if m.Alive() == 1 && len(all.all)+servers > 1 {
			n++
		}
	}
	return n
}

// heal waits until each node knows all others, and reports whether they do.
func (all *swarm) heal() bool {
	bound := shortHealing
	if measure.Full() {
		bound = healing
	}
	for late := time.Now().Add(bound); time.Now().Before(late); {
		looked := time.Now()
		if all.missing() == 0 {
			return true
		}
		rest(looked)
	}
	return false
}

// awaitMembers waits until each server knows of all nodes and servers.
func (s *formed) awaitMembers(b *testing.B) {
	b.Helper()
	for _, h := range s.all {
		h.Eventually("it knows of all", func() error {
			members := h.Try("server", "members", "-o", "json")
			if n := strings.Count(strings.ReplaceAll(members.Stdout, " ", ""), `"status":"alive"`); n != nodes+servers {
				return fmt.Errorf("%d of %d are alive: %s", n, nodes+servers, members.Stderr)
			}
			return nil
		})
	}
}

// enrol adds a node with a driver to the ledger and sends its heartbeats until the end.
func (s *formed) enrol(b *testing.B, name string) error {
	n := s.agent(b, pki.Node, name)
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	_, err := cluster.Apply(ctx, n, &command.PutNode{Node: claim.Node{
		Name: n.name, SecretHash: n.secret.Hash(),
		Drivers: map[string]claim.NodeDriver{"shared": {
			ID: "shared", Type: claim.Monolith, Healthy: true, NodeID: n.name,
			Controller: &claim.ControllerCapabilities{AttachDetach: true}, Node: &claim.NodeCapabilities{},
		}},
	}})
	if err == nil {
		n.live(b)
	}
	return err
}

// use is the CPU time used up to a moment, or during a period.
type use struct {
	moment        time.Time
	at            time.Duration
	servers, here time.Duration
}

// use returns the CPU time that the servers and this process have used so far.
func (s *formed) use(b *testing.B) use {
	b.Helper()
	return use{moment: time.Now(), servers: usage.CPU(b, s.pids()...), here: usage.CPU(b, os.Getpid())}
}

func (u use) since(before use) use {
	return use{
		moment: u.moment, at: u.moment.Sub(before.moment), servers: u.servers - before.servers,
		here: u.here - before.here,
	}
}

// share returns a CPU time as a percentage of one core during the period.
func (u use) share(cpu time.Duration) float64 { return 100 * cpu.Seconds() / u.at.Seconds() }
