package clusterbench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/usage"
)

var herdNodes = flag.Int("nodes", 2000, "the largest number of nodes of BenchmarkHerd, after a quarter and a half of it")

// herdLiveness is the timeouts of docs/operations/tuning.md for short outages: with the defaults, a third of the
// heartbeats come, and leases last three times as long. heartbeat_ttl is set apart.
const herdLiveness = "heartbeat_ttl = %q\n  stop_after = \"20s\"\n  stop_margin = \"15s\""

// herdVolumes is the number of volumes of each node that is gone.
const herdVolumes = 10

// What is printed of each size, and of each scenario: the time until all nodes have a lease by a heartbeat since it
// began, or until all claims are there; requests, as the nodes count them, of which some failed; connections; CPU time
// and memory.
const (
	herdHead = "%5d nodes %40s %8s %8s %8s %8s %10s %10s %8s %7s\n"
	herdLine = "%-48s %5.2f s %8d %8.1f %8d %8.1f %8.2f s %7.1f ms %4.0f MiB %7d\n"
)

// BenchmarkHerd lets all nodes of a cluster do the same thing at once, in three sizes, and prints what that costs.
func BenchmarkHerd(b *testing.B) {
	testbin.RequireRoot(b, "agents with volumes")
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var all []cost
	var ended int
	for _, n := range []int{*herdNodes / 4, *herdNodes / 2, *herdNodes} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, lost := runHerd(b, os.Stdout, n, "10s", false)
			all, ended = append(all, c), ended+lost
		})
	}
	for _, c := range all {
		fmt.Printf("%d nodes: %.1f ms of CPU time of the servers, %.0f KiB of the leader's memory a node; "+
			"%.2f times the time of %d nodes\n", c.nodes, 1000*c.cpu.Seconds()/float64(c.nodes), 1024*c.memory/float64(c.nodes),
			c.cpu.Seconds()/float64(c.nodes)/(all[0].cpu.Seconds()/float64(all[0].nodes)), all[0].nodes)
	}
	fmt.Printf("leases that ended because of the herd: %d\n", ended)
	if ended > 0 {
		b.Fail()
	}
}

// TestHerd runs a small herd, in which an operator vouches for the nodes that are gone.
func TestHerd(t *testing.T) {
	testbin.RequireRoot(t, "agents with volumes")
	if _, ended := runHerd(t, t.Output(), 20, "1s", true); ended > 0 {
		t.Errorf("%d leases ended because of the herd", ended)
	}
}

// cost is that of all scenarios of one size.
type cost struct {
	nodes  int
	cpu    time.Duration // of the three servers
	memory float64       // what the leader's grew by, in MiB
}

// runHerd runs the scenarios with a number of nodes, writes a line for each, and returns their cost and the number of
// leases that ended though their nodes were there.
func runHerd(t testing.TB, out io.Writer, nodes int, ttl string, vouch bool) (total cost, ended int) {
	t.Helper()
	s := form(t, "", fmt.Sprintf(herdLiveness, ttl))
	h := newHerd(t, s, nodes)
	fmt.Fprintf(out, herdHead, nodes, "time", "peak/s", "per node", "failed", "dials", "leader", "per node", "RSS", "lost")
	total = cost{nodes: nodes, memory: -usage.Memory(t, s.leader(t).PID(), "RssAnon")}
	run := func(what string, do func() time.Duration) {
		t.Helper()
		lost := h.lost.Load()
		h.begin()
		before := s.cpu(t)
		took := do()
		leader := s.leader(t)
		after := s.cpu(t)
		var all time.Duration
		for pid, used := range after {
			all += used - before[pid]
		}
		total.cpu += all
		sum, each := h.sum(), float64(nodes)
		fmt.Fprintf(out, herdLine, what, took.Seconds(), sum.peak, float64(sum.calls)/each, sum.failed,
			float64(sum.dials)/each, (after[leader.PID()] - before[leader.PID()]).Seconds(), 1000*all.Seconds()/each,
			usage.Memory(t, leader.PID(), "VmRSS"), h.lost.Load()-lost)
	}
	everybody := func(at time.Time) time.Duration { return h.await(t, at, h.all) }

	run("all nodes join", func() time.Duration {
		at := time.Now()
		h.start(h.all)
		return everybody(at)
	})
	h.cut(h.all)
	run("all are back after a power cut", func() time.Duration {
		at := time.Now()
		h.start(h.all)
		return everybody(at)
	})
	killed := s.leader(t)
	run("the leader is killed", func() time.Duration {
		at := time.Now()
		killed.Kill()
		return everybody(at)
	})
	run("it is back", func() time.Duration {
		at := time.Now()
		killed.Begin()
		killed.AwaitReady()
		s.awaitVoters(t)
		return everybody(at)
	})
	leader := s.leader(t)
	follower := s.all[slices.IndexFunc(s.all, func(h *server) bool { return h != leader })]
	run("a server is restarted", func() time.Duration {
		at := time.Now()
		follower.Stop()
		follower.Begin()
		follower.AwaitReady()
		return everybody(at)
	})
	gone, left := h.all[:nodes/4], h.all[nodes/4:]
	operator := s.operator(t)
	check.NoError(t, parallel(len(gone)*herdVolumes, registering, func(i int) error {
		return register(t.Context(), operator, i, herdDriver)
	}))
	run("a quarter claims ten volumes each", func() time.Duration {
		at := time.Now()
		check.NoError(t, parallel(len(gone), len(gone), func(i int) error {
			return gone[i].claim(t.Context(), i, workloadRef(i))
		}))
		return time.Since(at)
	})
	run("that quarter is gone, others claim its volumes", func() time.Duration {
		at := time.Now()
		h.cut(gone)
		if vouch {
			check.NoError(t, parallel(len(gone), registering, func(i int) error {
				_, err := cluster.SetNodeStatus(t.Context(), operator, gone[i].name, claim.NodeDown, "the test")
				return err
			}))
		}
		check.NoError(t, parallel(len(gone), len(gone), func(i int) error {
			return left[i].takeOver(t.Context(), i, workloadRef(i), workloadRef(len(gone)+i))
		}))
		return time.Since(at)
	})
	total.memory += usage.Memory(t, s.leader(t).PID(), "RssAnon")
	h.cut(left)
	return total, int(h.lost.Load())
}

// claim starts a workload that claims the volumes of a node by its number, as the workload's claim step does.
func (n *herdNode) claim(ctx context.Context, of int, ref claim.WorkloadRef) error {
	var want []claim.Claim
	for v := range herdVolumes {
		want = append(want, wanted(of*herdVolumes+v))
	}
	_, err := cluster.Apply(ctx, n.servers, command.Start(claim.Run{Ref: ref, Node: n.name, ID: "run-" + ref.ID}, want))
	return err
}

// takeOver claims the volumes of a workload as soon as nothing is left of it, as the workload's await step does.
func (n *herdNode) takeOver(ctx context.Context, of int, from, ref claim.WorkloadRef) error {
	ctx, cancel := context.WithTimeoutCause(ctx, herdPatience, errors.New("nothing was released in time"))
	defer cancel()
	wait := command.Await(claim.Run{Ref: ref, Node: n.name, ID: "run-" + ref.ID}, []claim.WorkloadRef{from})
	if _, err := cluster.Apply(ctx, n.servers, wait); err != nil {
		return fmt.Errorf("node %s waits for workload %s: %w", n.name, from, err)
	}
	if err := cluster.AwaitEnded(ctx, n.servers, from); err != nil {
		return fmt.Errorf("node %s waits for workload %s: %w", n.name, from, err)
	}
	if err := n.claim(ctx, of, ref); err != nil {
		return fmt.Errorf("node %s claims what workload %s had: %w", n.name, from, err)
	}
	return nil
}

// cpu is the CPU time that each running server has used, by its process.
func (s *formed) cpu(t testing.TB) map[int]time.Duration {
	t.Helper()
	all := map[int]time.Duration{}
	for _, h := range s.all {
		if h.Alive() {
			all[h.PID()] = usage.CPU(t, h.PID())
		}
	}
	return all
}
